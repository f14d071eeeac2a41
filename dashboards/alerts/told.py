"""Parts of an alert's text that Prometheus fills in from further series, when it sends the alert.

They are Go templates, as Prometheus expands them: a part whose series is absent is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collectors.metrics.metric import Metric
from dashboards.promql import SCRAPE_LABELS


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What is told of one thing, which the alert's own labels name; `begin` stands before all parts of a text.

    labels: those of the alert by which its series are found. time_of: a metric of the same labels, the time of what is
    shown: of several exporters, those count that show the newest. remembered_hours: how long a newest one is known
    after it was shown last.
    """

    labels: Sequence[str]
    time_of: Metric
    remembered_hours: int

    @property
    def begin(self) -> str:
        """The variable that the other parts use: a selector of the alert's labels."""
        names = ",".join(f"{label}=%q" for label in self.labels)
        values = " ".join(f"$labels.{label}" for label in self.labels)
        return f'{{{{ $of := printf "{{{names}}}" {values} }}}}'

    def percent(self, metric: Metric, text: str = "%s") -> str:
        """Show a ratio in percent with its sign, as `+5.8 %`. text: what stands around it."""
        return self.of(metric, text % '{{ . | first | value | printf "%+.1f %%" }}', factor="100 * ")

    def day(self, metric: Metric, text: str = "%s") -> str:
        """Show a time as its day in UTC, as 2026-11-18."""
        return self.of(metric, text % '{{ (. | first | value | toTime).UTC.Format "2006-01-02" }}')

    def newest(self, timestamp: Metric, shown: str) -> str:
        """Show a template whose dot is the sample of the newest time; nothing where there is none.

        timestamp: its value is the time of what its labels tell, so that an older night's are left out.
        """
        query = f"topk(1, last_over_time({timestamp.name}%[1]s[{self.remembered_hours}h]))"
        return f'{{{{ with query (printf "{query}" $of) }}}}{{{{ with . | first }}}}{shown}{{{{ end }}}}{{{{ end }}}}'

    def of(self, metric: Metric, shown: str, *, factor: str = "") -> str:
        """Show a template whose dot is the metric's present samples; nothing where there is none.

        Only what is shown now counts: what was shown last may be of an older night. factor: of the values.
        """
        on = ", ".join(SCRAPE_LABELS)
        newest = f"scalar(max(last_over_time({self.time_of.name}%[1]s[{self.remembered_hours}h])))"
        query = f"{factor}({metric.name}%[1]s and on ({on}) ({self.time_of.name}%[1]s == {newest}))"
        return f'{{{{ with query (printf "{query}" $of) }}}}{shown}{{{{ end }}}}'
