"""Agents that use JAX, all of them deterministic given their PRNG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import flax.core
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from pams.agents import Agent
from pams.order import LIMIT_ORDER, Cancel, Order

from . import models

if TYPE_CHECKING:
    from pams import Market

OPTIMIZER = optax.adam(0.01)


@jax.jit
def train(params: Any, state: Any, prices: jax.Array) -> tuple[Any, Any, jax.Array]:
    """One step of Adam towards the last price."""

    def error(params: Any) -> jax.Array:
        return jnp.square(models.MODEL.apply(params, prices[:-1]) - prices[-1])

    loss, gradient = jax.value_and_grad(error)(params)
    updates, state = OPTIMIZER.update(gradient, state)
    return optax.apply_updates(params, updates), state, loss


class JaxTrader(Agent):
    """Submits an order at the price that :meth:`predict` gives for the log prices."""

    number_of_prices = 4

    def setup(self, settings: dict[str, Any], accessible_markets_ids: list[int], **kw: Any) -> None:
        super().setup(settings, accessible_markets_ids, **kw)
        self.create(self.prng.getrandbits(31))

    def create(self, seed: int) -> None:
        """Create the model on the main process."""

    def predict(self, prices: jax.Array) -> jax.Array:
        raise NotImplementedError

    def submit_orders(self, markets: list[Market]) -> list[Order | Cancel]:
        market = markets[0]
        history = [market.get_market_price(max(0, market.get_time() - i)) for i in range(4)]
        history += [market.get_fundamental_price()] * (self.number_of_prices - 4)
        last = market.get_market_price()
        prediction = float(self.predict(jnp.log(jnp.asarray(history) / 300.0)))
        scale = 1.0 + 0.01 * prediction + self.prng.gauss(0.0, 0.003)
        return [
            Order(
                agent_id=self.agent_id,
                market_id=market.market_id,
                is_buy=self.prng.random() < 0.5,
                kind=LIMIT_ORDER,
                volume=1,
                # Not rounded much, so that a wrong digit of the forecast shows.
                price=last * scale,
                ttl=3,
            )
        ]


class LinenTrader(JaxTrader):
    """Parameters of its own, in a ``dict`` or a ``FrozenDict``."""

    def create(self, seed: int) -> None:
        self.params = models.init(jax.random.PRNGKey(seed))
        if self.agent_id % 2:
            self.params = flax.core.freeze(self.params)

    def predict(self, prices: jax.Array) -> jax.Array:
        return models.forecast(self.params, prices)


class NnxTrader(JaxTrader):
    """Keeps the state of a module; its graph is made once per process."""

    def create(self, seed: int) -> None:
        _, self.state = nnx.split(models.NnxMLP(nnx.Rngs(seed)))

    def predict(self, prices: jax.Array) -> jax.Array:
        return models.nnx_forecast(models.nnx_graph(), self.state, prices)


class RandomTrader(JaxTrader):
    """Draws from ``jax.random``, with keys derived from its PRNG."""

    def predict(self, prices: jax.Array) -> jax.Array:
        key = jax.random.PRNGKey(self.prng.getrandbits(31))
        return jax.random.normal(key) + prices.mean()


class KeyTrader(JaxTrader):
    """Carries a key of ``jax.random``, old or new style, from call to call."""

    synced_attributes = ("key",)

    def create(self, seed: int) -> None:
        make = jax.random.key if self.agent_id % 2 else jax.random.PRNGKey
        self.key = make(seed)

    def predict(self, prices: jax.Array) -> jax.Array:
        self.key, subkey = jax.random.split(self.key)
        return jax.random.normal(subkey)


class TrainingTrader(JaxTrader):
    """Trains its model at every call."""

    synced_attributes = ("params", "optimizer_state", "losses")
    number_of_prices = 5

    def create(self, seed: int) -> None:
        self.params = models.init(jax.random.PRNGKey(seed))
        self.optimizer_state = OPTIMIZER.init(self.params)
        self.losses: list[float] = []

    def predict(self, prices: jax.Array) -> jax.Array:
        self.params, self.optimizer_state, loss = train(self.params, self.optimizer_state, prices)
        self.losses.append(float(loss))
        return models.forecast(self.params, prices[:-1])


CLASSES = (LinenTrader, NnxTrader, RandomTrader, KeyTrader, TrainingTrader)


def population(number: int = 2, steps: int = 4) -> dict[str, Any]:
    """Settings of a simulation with ``number`` agents of every class."""
    session = {
        "sessionName": "everybody",
        "iterationSteps": steps,
        "withOrderPlacement": True,
        "withOrderExecution": True,
        "withPrint": False,
        "maxNormalOrders": 1000,
    }
    groups = {
        cls.__name__: {
            "class": cls.__name__,
            "numAgents": number,
            "markets": ["Market"],
            "assetVolume": 50,
            "cashAmount": 10000,
        }
        for cls in CLASSES
    }
    return {
        "simulation": {
            "markets": ["Market"],
            "agents": list(groups),
            "sessions": [session, {**session, "sessionName": "three", "maxNormalOrders": 3}],
        },
        "Market": {
            "class": "Market",
            "tickSize": 0.000001,
            "marketPrice": 300.0,
            "fundamentalVolatility": 0.005,
        },
        **groups,
    }
