"""Agent classes of the bundled examples."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any, ClassVar

from pams.agents import FCNAgent

if TYPE_CHECKING:
    from pams.market import Market
    from pams.order import Cancel, Order


class OptionPricingAgent(FCNAgent):
    """FCN agent that prices a European call by Monte Carlo whenever it is asked.

    The price is thrown away: it stands for the thinking of an expensive agent, as in
    ParallelMain of Plham (Torii et al. 2017), the X10 predecessor of pams. Then the agent
    submits nothing, or, with probability ``orderRate``, what an FCN agent does.

    Settings, in addition to those of :class:`pams.agents.FCNAgent`:

    * ``optionPaths`` (int, default 0): number of Monte Carlo paths; 0 prices nothing.
    * ``optionSteps`` (int, default 0): Euler steps per path.
    * ``orderRate`` (float, default 1.0): probability of acting as an FCN agent.
    """

    def setup(
        self,
        settings: dict[str, Any],
        accessible_markets_ids: list[int],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Read the settings; see the class."""
        super().setup(settings, accessible_markets_ids, *args, **kwargs)
        self.option_paths = int(settings.get("optionPaths", 0))
        self.option_steps = int(settings.get("optionSteps", 0))
        self.order_rate = float(settings.get("orderRate", 1.0))

    def submit_orders(self, markets: list[Market]) -> list[Order | Cancel]:
        """Price the option, then trade with probability ``orderRate``."""
        if self.option_paths > 0:
            for market in markets:
                if self.is_market_accessible(market.market_id):
                    # A generator of its own, so that the load changes nothing else.
                    seed = f"{self.agent_id}/{market.market_id}/{market.get_time()}"
                    call_price(random.Random(seed), self.option_paths, self.option_steps)
        if self.prng.random() >= self.order_rate:
            return []
        orders: list[Order | Cancel] = super().submit_orders(markets)
        return orders


def call_price(
    prng: random.Random,
    n_paths: int,
    n_steps: int,
    *,
    price: float = 100.0,
    strike: float = 100.0,
    rate: float = 0.1,
    volatility: float = 0.3,
    maturity: float = 3.0,
) -> float:
    """Monte Carlo price of a European call on a geometric Brownian motion.

    Args:
        prng: source of the normal variates.
        n_paths: number of paths, at least 1.
        n_steps: Euler steps per path, at least 1.
        price: price of the underlying today.
        strike: strike price.
        rate: risk-free rate per year.
        volatility: volatility per square root of a year.
        maturity: years to expiry.

    Returns:
        The discounted mean of the pay-off.
    """
    dt = maturity / n_steps
    drift = 1.0 + rate * dt
    diffusion = volatility * math.sqrt(dt)
    gauss = prng.gauss
    payoff = 0.0
    for _ in range(n_paths):
        underlying = price
        for _ in range(n_steps):
            underlying *= drift + diffusion * gauss(0.0, 1.0)
        payoff += max(underlying - strike, 0.0)
    return math.exp(-rate * maturity) * payoff / n_paths


class LearningAgent(FCNAgent):
    """FCN agent that trusts its fundamental or its chart strategy more, whichever was right.

    Each time it is asked it looks at the move of the market price since it was last asked,
    strengthens the weight of every strategy that had forecast the direction, and weakens the
    others. It changes its own attributes in ``submit_orders`` and therefore lists them.

    Settings, in addition to those of :class:`pams.agents.FCNAgent`: ``learningRate``
    (float, default 0.1), the relative change of a weight per forecast.
    """

    synced_attributes: ClassVar[tuple[str, ...]] = (
        "fundamental_weight",
        "chart_weight",
        "forecasts",
    )

    def setup(
        self,
        settings: dict[str, Any],
        accessible_markets_ids: list[int],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Read the settings; see the class."""
        super().setup(settings, accessible_markets_ids, *args, **kwargs)
        self.learning_rate = float(settings.get("learningRate", 0.1))
        # By market id: price when last asked, and the sign of each strategy's forecast.
        self.forecasts: dict[int, tuple[float, dict[str, float]]] = {}

    def submit_orders_by_market(self, market: Market) -> list[Order | Cancel]:
        """Learn from the last forecast, make the next one, and trade as an FCN agent."""
        if self.is_market_accessible(market.market_id):
            price = market.get_market_price()
            if market.market_id in self.forecasts:
                self._learn(price, *self.forecasts[market.market_id])
            past = market.get_market_price(max(market.get_time() - self.time_window_size, 0))
            self.forecasts[market.market_id] = (
                price,
                {
                    "fundamental_weight": market.get_fundamental_price() - price,
                    "chart_weight": price - past,
                },
            )
        orders: list[Order | Cancel] = super().submit_orders_by_market(market)
        return orders

    def _learn(self, price: float, last_price: float, forecasts: dict[str, float]) -> None:
        move = price - last_price
        for name, forecast in forecasts.items():
            if move != 0.0 and forecast != 0.0:
                right = (move > 0.0) == (forecast > 0.0)
                factor = 1.0 + self.learning_rate if right else 1.0 / (1.0 + self.learning_rate)
                setattr(self, name, getattr(self, name) * factor)
