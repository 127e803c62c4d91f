//! Instructions that change objects of earlier frames.
//!
//! They change what an object consists of directly, without the methods that its class may
//! override: the source has compared just that.

use pyo3::exceptions::PyException;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyDict, PyList, PySet, PyType};

use super::machine::Machine;
use super::objects::interned_if_str;
use crate::error::Result as WireResult;
use crate::py::errors::{no_memory, owned, status};
use crate::py::graph::array::patch;
use crate::py::graph::composite::Anatomy;
use crate::py::graph::numpy_random::set_state;
use crate::py::prefetch;
use crate::py::random::{instance_dict, RandomLayout};
use crate::py::runtime::Runtime;
use crate::random_states::{read_repeated_change, twisted, Change, NewWords, Position};
use crate::wire::op;

/// Items of a list that are going to other places in it.
pub(super) struct Lifted {
    items: std::vec::IntoIter<Py<PyAny>>,
    /// Where those that have been put into their places end.
    stop: usize,
}

impl<'py> Machine<'_, 'py, '_> {
    /// Runs an instruction of those that only frames have; `false` for any other.
    pub(super) fn run_update(&mut self, code: u8) -> PyResult<bool> {
        match code {
            op::UPDATE => self.begin_update()?,
            op::UPDATED => drop(self.pop()?),
            op::SPLICE => self.splice()?,
            op::LIFT => self.lift()?,
            op::LIFTED => self.push_lifted()?,
            op::REPLACE_LIFTED => self.replace_lifted()?,
            op::SET_ATTRIBUTE => self.set_attribute()?,
            op::UPDATED_ATTRIBUTE => {
                self.set_attribute()?;
                drop(self.pop()?);
            }
            op::UPDATED_ITEM => {
                self.set_item()?;
                drop(self.pop()?);
            }
            op::LAST_NAME => {
                let name = self.last_name.as_ref().map(|name| name.clone_ref(self.py));
                let name = name.ok_or_else(|| self.malformed("a name that has not come yet"))?;
                self.push(name)?;
            }
            op::SET_ITEM => self.set_item()?,
            op::CLEAR => self.clear()?,
            op::DELETE => self.delete()?,
            op::SET_ATTRIBUTES => self.set_attributes()?,
            op::SET_BYTES => self.set_bytes()?,
            op::RANDOM_STATES => self.random_states()?,
            op::NEW_FLOAT => {
                let bytes = self.reader.array()?;
                self.push_float(bytes)?;
                let float = self.peek()?.unbind();
                self.floats.push(float);
            }
            op::FLOAT_AGAIN => {
                let back = self.index()?;
                let index = self
                    .floats
                    .len()
                    .checked_sub(1)
                    .and_then(|last| last.checked_sub(back));
                let index = index.ok_or_else(|| self.malformed("a float that has not come yet"))?;
                let float = self.floats[index].clone_ref(self.py);
                self.push(float)?;
            }
            op::CLONE_LIST => self.clone_list()?,
            op::FREE => self.free()?,
            op::RENUMBER => self.renumber()?,
            op::ASSEMBLE => self.assemble()?,
            op::ASSEMBLE_LATE => self.assemble_late()?,
            op::PATCH_ARRAY => {
                let patches = self.reader.counted()?;
                if !patch(&self.peek()?, patches)? {
                    return Err(self.malformed("bytes that do not fit their array").into());
                }
            }
            op::SET_STATE => {
                let state = self.pop()?;
                set_state(&self.peek()?, state.bind(self.py))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn begin_update(&mut self) -> PyResult<()> {
        let number = i64::from(self.last_updated).checked_add(self.reader.signed()?);
        let number = number.and_then(|number| u32::try_from(number).ok());
        let number = number.ok_or_else(|| self.malformed("a number without an object"))?;
        let obj = self.object_at(number)?.clone_ref(self.py);
        self.last_updated = number;
        self.mark_updated(number);
        self.push(obj)
    }

    fn mark_updated(&mut self, number: u32) {
        if let Some(changes) = &mut self.changes {
            changes.updated.push(number);
        }
    }

    fn splice(&mut self) -> PyResult<()> {
        let start = self.index()?;
        let removed = self.index()?;
        let items = self.pop_counted()?;
        let target = self.peek()?;
        let list = target
            .cast_exact::<PyList>()
            .map_err(|_| self.malformed("a stretch of what is no list"))?;
        let stop = start
            .checked_add(removed)
            .filter(|stop| *stop <= list.len());
        let stop = stop.ok_or_else(|| self.malformed("a stretch beyond the end of its list"))?;
        if items.len() == removed {
            for (offset, item) in items.into_iter().enumerate() {
                list.set_item(start + offset, item)?;
            }
            return Ok(());
        }
        if start == list.len() {
            return items.into_iter().try_for_each(|item| list.append(item));
        }
        list.set_slice(start, stop, PyList::new(self.py, items)?.as_any())
    }

    fn lift(&mut self) -> PyResult<()> {
        let count = self.index()?;
        if count > self.reader.remaining() {
            return Err(self.malformed("places beyond the end of the data").into());
        }
        let target = self.peek()?;
        let list = target
            .cast_exact::<PyList>()
            .map_err(|_| self.malformed("places in what is no list"))?;
        let mut items = Vec::new();
        items.try_reserve(count).map_err(no_memory)?;
        let mut expected: i64 = 0;
        for _ in 0..count {
            let place = expected.wrapping_add(self.reader.signed()?);
            let found = usize::try_from(place).ok().filter(|at| *at < list.len());
            let found = found.ok_or_else(|| self.malformed("a place beyond the end of a list"))?;
            items.push(list.get_item(found)?.unbind());
            expected = place + 1;
        }
        self.lifted.push(Lifted {
            items: items.into_iter(),
            stop: 0,
        });
        Ok(())
    }

    fn push_lifted(&mut self) -> PyResult<()> {
        for _ in 0..self.reader.varint()? {
            let item = self.next_lifted()?;
            self.push(item)?;
        }
        Ok(())
    }

    fn next_lifted(&mut self) -> WireResult<Py<PyAny>> {
        while let Some(lifted) = self.lifted.last_mut() {
            if let Some(item) = lifted.items.next() {
                return Ok(item);
            }
            self.lifted.pop();
        }
        Err(self.malformed("more items than have been taken note of"))
    }

    fn replace_lifted(&mut self) -> PyResult<()> {
        let distance = self.index()?;
        let count = self.index()?;
        while self
            .lifted
            .pop_if(|lifted| lifted.items.len() == 0)
            .is_some()
        {}
        let before = self.lifted.last().map_or(0, |lifted| lifted.stop);
        let target = self.peek()?;
        let list = target
            .cast_exact::<PyList>()
            .map_err(|_| self.malformed("a stretch of what is no list"))?;
        let start = before.checked_add(distance);
        let stop = start.and_then(|start| start.checked_add(count));
        let (Some(start), Some(stop)) = (start, stop.filter(|stop| *stop <= list.len())) else {
            return Err(self
                .malformed("a stretch beyond the end of its list")
                .into());
        };
        if let Some(lifted) = self.lifted.last_mut() {
            lifted.stop = stop;
        }
        for place in start..stop {
            list.set_item(place, self.next_lifted()?)?;
        }
        Ok(())
    }

    fn set_attribute(&mut self) -> PyResult<()> {
        let value = self.pop()?;
        let name = interned_if_str(self.pop()?.into_bound(self.py))?;
        self.attributes_of(&self.peek()?)?.set_item(&name, value)?;
        self.last_name = Some(name.unbind());
        Ok(())
    }

    fn set_item(&mut self) -> PyResult<()> {
        let value = self.pop()?;
        let key = self.pop()?;
        let target = self.peek()?;
        let dict = target
            .cast_exact::<PyDict>()
            .map_err(|_| self.malformed("an item of what is no dict"))?;
        dict.set_item(key, value)
    }

    fn index(&mut self) -> WireResult<usize> {
        let value = self.reader.varint()?;
        usize::try_from(value).map_err(|_| self.malformed("an index beyond all memory"))
    }

    fn clear(&mut self) -> PyResult<()> {
        let target = self.peek()?;
        if let Ok(list) = target.cast_exact::<PyList>() {
            list.set_slice(0, list.len(), PyList::empty(self.py).as_any())
        } else if let Ok(dict) = target.cast_exact::<PyDict>() {
            dict.clear();
            Ok(())
        } else if let Ok(set) = target.cast_exact::<PySet>() {
            set.clear();
            Ok(())
        } else {
            self.attributes_of(&target)?.clear();
            Ok(())
        }
    }

    /// The dict with the attributes of an object that a source has recorded attributes of. That is
    /// never a class, whose dict nobody may change behind the interpreter's back.
    fn attributes_of(&self, target: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        if target.is_instance_of::<PyType>() {
            return Err(self.malformed("attributes of a class").into());
        }
        instance_dict(target)
    }

    fn delete(&mut self) -> PyResult<()> {
        let keys = self.pop_counted()?;
        let target = self.peek()?;
        if let Ok(set) = target.cast_exact::<PySet>() {
            for key in keys {
                set.discard(key)?;
            }
            return Ok(());
        }
        let dict = match target.cast_exact::<PyDict>() {
            Ok(dict) => dict.clone(),
            Err(_) => self.attributes_of(&target)?,
        };
        keys.into_iter().try_for_each(|key| dict.del_item(key))
    }

    fn set_attributes(&mut self) -> PyResult<()> {
        let pairs = self.pop_pairs()?;
        let dict = self.attributes_of(&self.peek()?)?;
        for (name, value) in pairs {
            dict.set_item(interned_if_str(name.into_bound(self.py))?, value)?;
        }
        Ok(())
    }

    fn set_bytes(&mut self) -> PyResult<()> {
        let bytes = self.reader.counted()?;
        let target = self.peek()?;
        let target = target
            .cast_exact::<PyByteArray>()
            .map_err(|_| self.malformed("bytes for what is no bytearray"))?;
        set_bytearray(target, bytes)
    }

    fn random_states(&mut self) -> PyResult<()> {
        let py = self.py;
        let layout = Runtime::get(py)?.random.as_ref();
        let layout = layout.ok_or_else(|| self.malformed("generators of another layout"))?;
        let mut pending = Vec::new();
        let mut number: u64 = 0;
        let mut left = self.reader.varint()?;
        while left > 0 {
            let (distance, change, count) = read_repeated_change(&mut self.reader)?;
            // Numbers ascend, so there are never more changes than objects.
            if distance == 0 && (count > 1 || !pending.is_empty()) {
                return Err(self.malformed("two changes of one generator").into());
            }
            left = left
                .checked_sub(count)
                .ok_or_else(|| self.malformed("more generators than their count"))?;
            for _ in 0..count {
                number = number.saturating_add(distance);
                let number = u32::try_from(number)
                    .map_err(|_| self.malformed("a number without an object"))?;
                self.object_at(number)?;
                pending.try_reserve(1).map_err(no_memory)?;
                pending.push((number, change));
            }
        }
        for (at, (number, change)) in pending.iter().enumerate() {
            if let Some((ahead, _)) = pending.get(at + prefetch::FAR) {
                layout.prefetch_index(self.object_at(*ahead)?.as_ptr());
            }
            let prng = self.object_at(*number)?.bind(py).clone();
            if !layout.is_exact(&prng) {
                return Err(self.malformed("a state for what is no generator").into());
            }
            self.change_random_state(layout, *number, &prng, change)?;
        }
        Ok(())
    }

    fn change_random_state(
        &mut self,
        layout: &RandomLayout,
        number: u32,
        prng: &Bound<'py, PyAny>,
        change: &Change<'_>,
    ) -> PyResult<()> {
        let index = change.index_after(layout.index_of(prng));
        let index = index.ok_or_else(|| self.malformed("a word index above 624"))?;
        if change.words == NewWords::Twists(0) && change.gauss_next.is_none() {
            // The case of nearly all: whatever else the generator consists of is not touched.
            layout.write_index(prng, index);
            if let Some(changes) = &mut self.changes {
                changes.moved.push((number, index));
            }
            return Ok(());
        }
        let old = layout.read(prng, |position, words| (position.gauss_next, *words))?;
        let (old_gauss, old_words) =
            old.ok_or_else(|| self.malformed("a generator that is not as it was"))?;
        let position = Position {
            index,
            gauss_next: change.gauss_next.unwrap_or(old_gauss),
        };
        match change.words {
            NewWords::Twists(twists) => {
                layout.write(prng, position, &twisted(&old_words, twists))?;
            }
            NewWords::Full(words) => layout.write(prng, position, words)?,
        }
        self.mark_updated(number);
        Ok(())
    }

    fn clone_list(&mut self) -> PyResult<()> {
        let number = self.reader.number()?;
        let list = self.object_at(number)?.bind(self.py).clone();
        let list = list
            .cast_exact::<PyList>()
            .map_err(|_| self.malformed("a clone of what is no list"))?;
        // The list can be much larger than the frame, and `get_slice` would panic without memory.
        // SAFETY: a live list; the result is owned.
        let clone = unsafe {
            let end = ffi::Py_ssize_t::MAX;
            owned(self.py, ffi::PyList_GetSlice(list.as_ptr(), 0, end))?
        };
        self.push_new(clone)
    }

    fn renumber(&mut self) -> PyResult<()> {
        let n_objects = self.decoded.objects.len();
        let is_fresh = self.decoded.free.is_empty()
            && self.changes.as_ref().is_some_and(|changes| {
                changes.created.len() == n_objects
                    && changes.updated.is_empty()
                    && changes.moved.is_empty()
                    && changes.freed.is_empty()
            });
        if !is_fresh {
            return Err(self
                .malformed("other numbers for what is no keyframe")
                .into());
        }
        let n_shapes = self.index()?;
        if n_shapes > self.decoded.shapes.len() {
            return Err(self.malformed("an unknown shape").into());
        }
        let mut numbers: Vec<Option<u32>> = Vec::new();
        numbers.try_reserve(n_objects).map_err(no_memory)?;
        loop {
            let length = self.index()?;
            if length == 0 {
                break;
            }
            let first = self.reader.number()?;
            if length > n_objects - numbers.len() || u32::MAX - first < length as u32 {
                return Err(self.malformed("numbers for too many objects").into());
            }
            match first.checked_sub(1) {
                Some(first) => numbers.extend((first..first + length as u32).map(Some)),
                None => numbers.resize(numbers.len() + length, None),
            }
        }
        if numbers.len() != n_objects {
            return Err(self.malformed("numbers for too few objects").into());
        }
        let n_free = self.index()?;
        if n_free > self.reader.remaining() {
            return Err(self.malformed("more free numbers than there can be").into());
        }
        let free = (0..n_free).map(|_| self.reader.number());
        let free = free.collect::<WireResult<Vec<u32>>>()?;

        // With no number given twice and none left out, these are all of them.
        let created: Vec<u32> = numbers.iter().flatten().copied().collect();
        let n_numbers = created.len() + free.len();
        let mut is_given = Vec::new();
        is_given.try_reserve(n_numbers).map_err(no_memory)?;
        is_given.resize(n_numbers, false);
        for number in created.iter().chain(&free) {
            match is_given.get_mut(*number as usize) {
                Some(given) if !*given => *given = true,
                _ => return Err(self.malformed("a number that is given twice").into()),
            }
        }
        let mut objects: Vec<Py<PyAny>> = Vec::new();
        objects.try_reserve(n_numbers).map_err(no_memory)?;
        objects.resize_with(n_numbers, || self.py.None());
        let former = std::mem::take(&mut self.decoded.objects);
        let mut dropped = Vec::new();
        for (obj, number) in former.into_iter().zip(numbers) {
            match number {
                // What was there is `None`, so dropping it runs no code.
                Some(number) => objects[number as usize] = obj,
                None => dropped.push(obj),
            }
        }
        self.decoded.objects = objects;
        self.decoded.free = free;
        drop(self.decoded.shapes.drain(..n_shapes));
        if let Some(changes) = &mut self.changes {
            changes.created = created;
            changes.dropped = dropped;
        }
        Ok(())
    }

    fn assemble(&mut self) -> PyResult<()> {
        let state = self.pop()?;
        self.assemble_from(&self.peek()?, state.bind(self.py), false)
    }

    fn assemble_late(&mut self) -> PyResult<()> {
        let state = self.pop()?;
        let obj = self.peek()?;
        match self.assemble_from(&obj, state.bind(self.py), false) {
            // Too early; if the hash is broken for good, the error comes again at the end.
            Err(error) if !error.is_instance_of::<PyException>(self.py) => return Err(error),
            _ => {}
        }
        self.late_parts.push((obj.unbind(), state));
        Ok(())
    }

    /// Gives objects whose keys can have got other hashes their parts again.
    pub(super) fn settle_late_parts(&mut self) -> PyResult<()> {
        for (obj, state) in std::mem::take(&mut self.late_parts) {
            self.assemble_from(obj.bind(self.py), state.bind(self.py), true)?;
        }
        Ok(())
    }

    fn assemble_from(
        &self,
        obj: &Bound<'py, PyAny>,
        state: &Bound<'py, PyAny>,
        has_old_hashes: bool,
    ) -> PyResult<()> {
        let anatomy = Anatomy::of(&obj.get_type())?;
        let parts = anatomy
            .as_ref()
            .and_then(|anatomy| Some((anatomy, anatomy.parse_state(state)?)));
        let (anatomy, parts) =
            parts.ok_or_else(|| self.malformed("parts for what has no such parts"))?;
        if has_old_hashes {
            // Not even comparing the items is possible before.
            anatomy.refill(obj, &parts)?;
        }
        anatomy.restore(obj, &parts, &mut Vec::new())
    }

    fn free(&mut self) -> PyResult<()> {
        let mut number: u32 = 0;
        for at in 0..self.reader.varint()? {
            let distance = self.reader.number()?;
            number = number.saturating_add(distance);
            let obj = self.object_at(number)?;
            // What a reducer returned can be `None`, too.
            let is_free = || obj.is_none(self.py) && self.decoded.free.contains(&number);
            if (at > 0 && distance == 0) || is_free() {
                return Err(self.malformed("a number that is free already").into());
            }
            let place = &mut self.decoded.objects[number as usize];
            let freed = std::mem::replace(place, self.py.None());
            self.decoded.free.push(number);
            if let Some(changes) = &mut self.changes {
                changes.freed.push((number, freed));
            }
        }
        Ok(())
    }
}

/// Replaces the contents of a `bytearray`; fails while somebody has its buffer.
pub fn set_bytearray(target: &Bound<'_, PyByteArray>, bytes: &[u8]) -> PyResult<()> {
    // SAFETY: a live bytearray; a length that does not fit is refused by the call.
    status(target.py(), unsafe {
        ffi::PyByteArray_Resize(target.as_ptr(), bytes.len() as ffi::Py_ssize_t)
    })?;
    // SAFETY: it has just got this length, and no Python code runs during the copy.
    unsafe { target.as_bytes_mut() }.copy_from_slice(bytes);
    Ok(())
}
