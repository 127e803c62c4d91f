"""Agents whose forecast is a neural network of Flax.

The module needs JAX and Flax, so nothing but ``examples.load("flax")`` imports it. It creates no
array when it is imported: workers import it before they have configured JAX.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pams.agents import FCNAgent
from pams.order import LIMIT_ORDER, Order

try:
    import jax
    import jax.numpy as jnp
    from flax import linen
except ImportError as error:
    raise ImportError(
        f"the agents of the example 'flax' need JAX and Flax ({error}); "
        "install them with: pip install 'pams-parallel[jax]'",
        name=error.name,
    ) from error

if TYPE_CHECKING:
    from pams.market import Market
    from pams.order import Cancel

WINDOW = 16
"""Number of log returns that a network sees."""

SAMPLES = 16
"""Number of forecasts that a training step judges."""

# Networks see and forecast log returns in per cent, which are numbers of a good size for them.
_UNIT = 0.01


class ForecastNetwork(linen.Module):
    """Multilayer perceptron that forecasts the next log return from the last ones.

    Attributes:
        hidden_layers: number of units of each hidden layer.
    """

    hidden_layers: tuple[int, ...]

    @linen.compact
    def __call__(self, returns: jax.Array) -> jax.Array:
        """Forecast.

        Args:
            returns: shape ``(..., WINDOW)``, log returns in per cent, the latest one last.

        Returns:
            Shape ``(...)``, log return of the next step in per cent.
        """
        values = returns
        for units in self.hidden_layers:
            values = linen.tanh(linen.Dense(units)(values))
        result: jax.Array = linen.Dense(1)(values)[..., 0]
        return result


# Functions compiled by jax.jit cannot be copied to workers as attributes of agents. Here each
# process compiles them once for all agents with such layers, which hand over their parameters.
_compiled = partial(jax.jit, static_argnames="hidden_layers")


@_compiled
def initial_parameters(hidden_layers: tuple[int, ...], key: jax.Array) -> Any:
    """Draw the parameters of a network.

    Args:
        hidden_layers: hidden layers of the network.
        key: key of :mod:`jax.random`.

    Returns:
        The parameters, a tree of ``float32`` arrays.
    """
    return ForecastNetwork(hidden_layers).init(key, jnp.zeros(WINDOW, jnp.float32))["params"]


@_compiled
def forecast(hidden_layers: tuple[int, ...], parameters: Any, returns: jax.Array) -> jax.Array:
    """Forecast the next log return.

    Args:
        hidden_layers: hidden layers of the network.
        parameters: its parameters.
        returns: see :class:`ForecastNetwork`.

    Returns:
        See :class:`ForecastNetwork`.
    """
    result: jax.Array = ForecastNetwork(hidden_layers).apply({"params": parameters}, returns)
    return result


@_compiled
def train(
    hidden_layers: tuple[int, ...], parameters: Any, returns: jax.Array, learning_rate: float
) -> Any:
    """Make one step of gradient descent on the mean squared error of the latest forecasts.

    Args:
        hidden_layers: hidden layers of the network.
        parameters: its parameters.
        returns: shape ``(WINDOW + SAMPLES,)``, log returns in per cent, the latest one last.
        learning_rate: factor of the gradient.

    Returns:
        The new parameters. The old ones are not donated, for other agents of the chunk may
        share them.
    """
    windows = returns[np.arange(SAMPLES)[:, np.newaxis] + np.arange(WINDOW)]

    def loss(parameters: Any) -> jax.Array:
        return jnp.mean((forecast(hidden_layers, parameters, windows) - returns[WINDOW:]) ** 2)

    gradient = jax.grad(loss)(parameters)
    return jax.tree_util.tree_map(lambda p, g: p - learning_rate * g, parameters, gradient)


class FlaxAgent(FCNAgent):
    """FCN agent whose chart strategy is a neural network of its own.

    The model is that of Chiarella and Iori (2002), "A simulation analysis of the microstructure
    of double auction markets", Quantitative Finance 2(5), 346-353, as
    :class:`pams.agents.FCNAgent` has it, with the forecast of :class:`ForecastNetwork` in the
    place of the mean past return. The parameters are drawn with a key that derives from the
    agent's ``prng``, so that they depend on nothing else.

    Settings, in addition to those of :class:`pams.agents.FCNAgent`, of which ``marginType`` is
    not read (margins are "fixed"):

    * ``hiddenLayers`` (list of int, default ``[16, 16]``): number of units of each hidden layer.
    """

    def setup(
        self,
        settings: dict[str, Any],
        accessible_markets_ids: list[int],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Read the settings and draw the parameters; see the class."""
        super().setup(settings, accessible_markets_ids, *args, **kwargs)
        self.hidden_layers = tuple(settings.get("hiddenLayers", (16, 16)))
        key = jax.random.key(self.prng.getrandbits(31))
        self.parameters = initial_parameters(self.hidden_layers, key)

    def submit_orders_by_market(self, market: Market) -> list[Order | Cancel]:
        """Forecast the price, and bid below or ask above the forecast."""
        if not self.is_market_accessible(market.market_id):
            return []
        price = market.get_market_price()
        reversion_time = max(self.mean_reversion_time, 1)
        fundamental = math.log(market.get_fundamental_price() / price) / reversion_time
        returns = past_returns(market, WINDOW)
        chart = _UNIT * float(forecast(self.hidden_layers, self.parameters, returns))
        noise = self.noise_scale * self.prng.gauss(0.0, 1.0)
        expected_return = (
            self.fundamental_weight * fundamental
            + self.chart_weight * chart
            + self.noise_weight * noise
        ) / (self.fundamental_weight + self.chart_weight + self.noise_weight)
        assert math.isfinite(expected_return)
        expected_price = price * math.exp(expected_return * self.time_window_size)
        if expected_price == price:
            return []
        is_buy = expected_price > price
        margin = -self.order_margin if is_buy else self.order_margin
        order = Order(
            agent_id=self.agent_id,
            market_id=market.market_id,
            is_buy=is_buy,
            kind=LIMIT_ORDER,
            volume=1,
            price=expected_price * (1.0 + margin),
            ttl=self.time_window_size,
        )
        return [order]


class TrainingFlaxAgent(FlaxAgent):
    """:class:`FlaxAgent` that goes on training its network while the simulation runs.

    It replaces its parameters in ``submit_orders`` and therefore lists them.

    Settings, in addition to those of :class:`FlaxAgent`:

    * ``trainingInterval`` (int, default 5): steps between two training steps, at least 1.
    * ``learningRate`` (float, default 0.01): factor of the gradient.
    """

    synced_attributes: ClassVar[tuple[str, ...]] = ("parameters", "next_training")

    def setup(
        self,
        settings: dict[str, Any],
        accessible_markets_ids: list[int],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Read the settings; see the class."""
        super().setup(settings, accessible_markets_ids, *args, **kwargs)
        self.training_interval = int(settings.get("trainingInterval", 5))
        self.learning_rate = float(settings.get("learningRate", 0.01))
        self.next_training: dict[int, int] = {}  # time by market id

    def submit_orders_by_market(self, market: Market) -> list[Order | Cancel]:
        """Train if it is time to, then trade as a :class:`FlaxAgent`."""
        time = market.get_time()
        if self.is_market_accessible(market.market_id) and time >= self.next_training.get(
            market.market_id, self.training_interval
        ):
            returns = past_returns(market, WINDOW + SAMPLES)
            self.parameters = train(
                self.hidden_layers, self.parameters, returns, self.learning_rate
            )
            self.next_training[market.market_id] = time + self.training_interval
        return super().submit_orders_by_market(market)


def past_returns(market: Market, number: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Log returns of a market, always as many, so that nothing is compiled anew as time passes.

    Args:
        market: the market.
        number: how many.

    Returns:
        Shape ``(number,)``, log returns in per cent, the latest one last. Before the beginning
        the price is taken to be that of the beginning.
    """
    now = market.get_time()
    prices = market.get_market_prices([max(now - age, 0) for age in range(number, -1, -1)])
    return (np.diff(np.log(prices)) / _UNIT).astype(np.float32)
