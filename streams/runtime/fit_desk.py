"""Between the planner of one DGD and the workers: jobs out, results in as records that the planner reads like any."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace.models.forecast.fitting import FitResult
from headrace.schemas.forecast_fit import ForecastFit
from headrace.streams.planner import Planner
from headrace.streams.runtime.fits import Fits, shared_fits


@dataclass(slots=True)
class FitDesk:
    """Asked after every tick. It never waits: what has not come is asked for again."""

    dgd: str
    fits: Fits
    _options: str = ""  # of the forecasters, when fits were last asked for
    _said: dict[tuple[str, str], int] = field(default_factory=dict)  # series, kind -> at, of what was published

    def exchange(self, planner: Planner, now: float) -> list[ForecastFit]:
        """Submit the fits that are due. Returns those that have come, to be published."""
        forecasts = planner.forecasts
        if forecasts.options != self._options:  # what is under way is of no use to the new ones
            self.close()
            self._options = forecasts.options
        found = [self._record(series, result, now) for series, result in self.fits.finished(self.dgd)]
        for series, job in forecasts.fit_jobs():
            if job.at > self._said.get((series, job.kind), 0):  # else it is on its way back to the planner
                self.fits.submit(self.dgd, series, [job])
        return found

    def _record(self, series: str, result: FitResult, now: float) -> ForecastFit:
        self._said[series, result.kind] = result.at
        return ForecastFit(
            dgd=self.dgd,
            fit_id=f"{series}:{result.kind}:{result.at}:{now:.3f}",
            series=series,
            kind=result.kind,
            options=self._options,
            at=result.at,
            newest=result.newest,
            values=result.values,
            made_at=now,
            failure=result.failure,
        )

    def close(self) -> None:
        """Nothing that is under way is wanted any more."""
        self.fits.forget(self.dgd)
        self._said.clear()


@contextmanager
def fit_desk(dgd: str, fits: Fits | None = None) -> Iterator[FitDesk]:
    """A desk at these workers, or at those that all DGDs of this process share."""
    with shared_fits() as shared:
        desk = FitDesk(dgd, fits or shared)
        try:
            yield desk
        finally:
            desk.close()
