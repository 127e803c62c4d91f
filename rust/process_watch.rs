//! Ends this process when another one is gone, whatever the threads of this one are doing.
//!
//! Worker processes outlive a main process that is killed: they wait for a task on a pipe whose
//! other end their siblings hold open, too. Nor does a signal on the parent's death
//! (`PR_SET_PDEATHSIG`) do, because it goes by the *thread* that forked, and the parent can be a
//! fork server. So a thread of each worker, which needs no GIL, waits on a pidfd of the main
//! process. Where there is none (Linux before 5.3, macOS), it looks once a second.

use std::io;
use std::path::PathBuf;

/// Name of the watching thread.
const THREAD_NAME: &str = "pams-watch";

/// A process that may come to an end and whose number may be given to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    /// See [`start_time`]; `None` if that is not known.
    pub start_time: Option<u64>,
}

/// When a process that has not ended started, in ticks of Linux since boot. `None` if there is no
/// such process, or no `/proc` to tell.
pub fn start_time(pid: i32) -> Option<u64> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Start time in a line of `/proc/<pid>/stat`, unless the process has ended.
fn parse_stat(line: &str) -> Option<u64> {
    // The second field is a name in parentheses and can contain anything.
    let (_, rest) = line.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    // A zombie has ended, and only its parent does not know yet.
    let has_ended = matches!(fields.next()?, "Z" | "X" | "x");
    let start_time = fields.nth(18)?.parse().ok()?;
    (!has_ended).then_some(start_time)
}

/// Start the thread that ends this process when `process` is gone.
///
/// If it is gone already, this process ends at once.
///
/// # Arguments
///
/// * `directory` - what is deleted before this process ends.
///
/// Returns whether this platform can do that.
#[cfg(unix)]
pub fn end_with(process: Process, directory: Option<PathBuf>) -> io::Result<bool> {
    unix::start(process, directory)?;
    Ok(true)
}

#[cfg(not(unix))]
pub fn end_with(_process: Process, _directory: Option<PathBuf>) -> io::Result<bool> {
    Ok(false)
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::mem::MaybeUninit;
    use std::time::Duration;

    const POLL_INTERVAL: Duration = Duration::from_secs(1);

    /// Seconds after which the process ends although the directory is not deleted yet.
    const TIME_TO_DELETE: u32 = 5;

    /// Exit code, which nobody is there to see.
    const EXIT_CODE: i32 = 1;

    pub fn start(process: Process, directory: Option<PathBuf>) -> io::Result<()> {
        // SAFETY: no preconditions.
        let parent = unsafe { libc::getppid() };
        // Before the first look at the process: if that shows the right one, the descriptor is
        // of the right one, too.
        let descriptor = pidfd::open(process.pid);
        let signals = block_all_signals();
        let thread = std::thread::Builder::new()
            .name(THREAD_NAME.to_owned())
            .spawn(move || {
                wait_until_gone(process, parent, descriptor);
                end(directory)
            });
        unblock(&signals);
        thread.map(drop)
    }

    fn wait_until_gone(process: Process, parent: i32, descriptor: Option<pidfd::Descriptor>) {
        let is_there = || {
            // SAFETY: no preconditions.
            let parent_now = unsafe { libc::getppid() };
            parent_now == parent && is_there(process, parent)
        };
        if let (true, Some(descriptor)) = (is_there(), &descriptor) {
            descriptor.wait();
        }
        // User code can have closed the descriptor, so this has the last word.
        while is_there() {
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn is_there(process: Process, parent: i32) -> bool {
        match (start_time(process.pid), process.start_time) {
            (Some(found), Some(expected)) => return found == expected,
            (Some(_), None) => return true,
            // Otherwise there is no `/proc` here, e.g. after chroot.
            (None, _) if start_time(std::process::id() as i32).is_some() => return false,
            (None, _) => {}
        }
        if process.pid == parent {
            return true; // nobody has adopted this process yet
        }
        // SAFETY: no preconditions; signal 0 is only a question.
        let code = unsafe { libc::kill(process.pid, 0) };
        code == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
    }

    fn end(directory: Option<PathBuf>) -> ! {
        if let Some(directory) = directory {
            // SAFETY: no preconditions. Threads that take part in deleting, e.g. one that holds
            // a lock of the allocator for ever, must not keep the process from ending.
            unsafe {
                libc::signal(libc::SIGALRM, libc::SIG_DFL);
                libc::alarm(TIME_TO_DELETE);
            }
            // It may not exist, and other workers delete it as well.
            let _ = std::fs::remove_dir_all(directory);
        }
        // SAFETY: no preconditions; nothing of this process is cleaned up, which is intended.
        unsafe { libc::_exit(EXIT_CODE) }
    }

    /// Signals are for the other threads: Python's main thread would not wake up from a system
    /// call for one that is delivered to the watching thread, which inherits this mask.
    fn block_all_signals() -> libc::sigset_t {
        let mut all = MaybeUninit::uninit();
        let mut previous = MaybeUninit::uninit();
        // SAFETY: sigfillset fills `all`, and pthread_sigmask, which cannot fail with these
        // arguments, fills `previous`.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), previous.as_mut_ptr());
            previous.assume_init()
        }
    }

    fn unblock(previous: &libc::sigset_t) {
        // SAFETY: `previous` is a valid set; a null pointer asks for no old one.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, previous, std::ptr::null_mut()) };
    }

    #[cfg(target_os = "linux")]
    mod pidfd {
        use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

        pub struct Descriptor(OwnedFd);

        pub fn open(pid: i32) -> Option<Descriptor> {
            // SAFETY: the system call takes two integers, and returns -1 or a new descriptor.
            let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
            let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
            // SAFETY: the descriptor is new, so nobody else owns it.
            Some(Descriptor(unsafe { OwnedFd::from_raw_fd(fd) }))
        }

        impl Descriptor {
            /// Wait until the process has ended, or the descriptor is of no use.
            pub fn wait(&self) {
                let mut poll = libc::pollfd {
                    fd: self.0.as_raw_fd(),
                    events: libc::POLLIN,
                    revents: 0,
                };
                // SAFETY: `poll` is one valid entry.
                while unsafe { libc::poll(&mut poll, 1, -1) } < 0 {
                    let error = std::io::Error::last_os_error();
                    if error.kind() != std::io::ErrorKind::Interrupted {
                        return;
                    }
                }
            }
        }
    }

    #[cfg(not(target_os = "linux"))]
    mod pidfd {
        pub enum Descriptor {}

        pub fn open(_pid: i32) -> Option<Descriptor> {
            None
        }

        impl Descriptor {
            pub fn wait(&self) {
                match *self {}
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn this_process() -> Process {
            let pid = std::process::id() as i32;
            Process {
                pid,
                start_time: start_time(pid),
            }
        }

        #[test]
        fn this_process_is_there() {
            assert!(is_there(this_process(), 1));
            let unknown = Process {
                start_time: None,
                ..this_process()
            };
            assert!(is_there(unknown, 1));
        }

        #[test]
        #[cfg(target_os = "linux")]
        fn process_with_a_number_that_was_given_again_is_not_there() {
            let mut process = this_process();
            process.start_time = process.start_time.map(|time| time + 1);
            assert!(process.start_time.is_some());
            assert!(!is_there(process, 1));
        }

        #[test]
        #[cfg(target_os = "linux")]
        fn process_that_has_ended_is_not_there() {
            let mut child = std::process::Command::new("cat")
                .stdin(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let pid = child.id() as i32;
            let process = Process {
                pid,
                start_time: start_time(pid),
            };
            assert!(is_there(process, 1));
            let descriptor = pidfd::open(pid);
            drop(child.stdin.take());
            if let Some(descriptor) = descriptor {
                descriptor.wait();
                assert!(!is_there(process, 1)); // a zombie
            }
            child.wait().unwrap();
            assert!(!is_there(process, 1));
            let unknown = Process {
                pid,
                start_time: None,
            };
            assert!(!is_there(unknown, 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "77 (a) b (c) S 1 77 77 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 2 3";

    #[test]
    fn start_time_is_read_after_any_name() {
        assert_eq!(parse_stat(LINE), Some(12345));
    }

    #[test]
    fn zombies_have_no_start_time() {
        assert_eq!(parse_stat(&LINE.replace(" S ", " Z ")), None);
    }

    #[test]
    fn other_lines_have_no_start_time() {
        for line in [
            "",
            ")",
            "77 (a) S 1 2 3",
            "77 (a",
            "1 (a) S x x x x x x x x x",
        ] {
            assert_eq!(parse_stat(line), None);
        }
    }
}
