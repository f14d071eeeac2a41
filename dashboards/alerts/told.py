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
        """Show a template whose dot is the metric's newest samples; nothing where there is none.

        Where no exporter shows the newest night any more, what was shown last with it counts: what was shown last of
        all may be of an older night. factor: of the values.
        """
        on = ", ".join(SCRAPE_LABELS)
        hours = self.remembered_hours
        newest = f"scalar(max(last_over_time({self.time_of.name}%[1]s[{hours}h] @ end())))"
        now = f"{metric.name}%[1]s and on ({on}) ({self.time_of.name}%[1]s == {newest})"
        shown_now, shown_last = f"{factor}({now})", f"{factor}last_over_time(({now})[{hours}h:{_MOMENTS}])"
        # The second query, which costs more, is asked only where the first has no answer.
        asked = " ".join(f'(query (printf "{query}" $of))' for query in (shown_now, shown_last))
        return f"{{{{ with or {asked} }}}}{shown}{{{{ end }}}}"


_MOMENTS = "5m"
"""How often what is remembered is looked for: a verdict is shown for longer."""


def ranks_when_last(info: Metric, alive: Metric, *labels: str, **alive_labels: str) -> str:
    """Return a sentence on the runs and ranks that were there when something was last seen; nothing where none was.

    info: has the labels run and rank. alive: is shown as long as the thing is. labels: those of the alert by which both
    are found. alive_labels: further ones of `alive`.
    """
    names = ",".join(f"{label}=%q" for label in labels)
    values = " ".join(f"$labels.{label}" for label in labels)
    only = "".join(f',{name}=\\"{value}\\"' for name, value in alive_labels.items())
    # A scrape gives all that an agent shows one time: the last of a rank is no older where it was there to the end.
    ranks = f"max_over_time(timestamp({info.name}{{%[1]s%[2]s}})[{_SEEN_HOURS}h:1m])"
    last = f"scalar(max(max_over_time(timestamp({alive.name}{{%[1]s{only}}})[{_SEEN_HOURS}h:1m])))"
    return (
        f'{{{{ $of := printf "{names}" {values} }}}}'
        f'{{{{ range $run := query (printf "count by (run) ({ranks} >= {last})" $of "") | sortByLabel "run" }}}}'
        f' On it then: run {{{{ $run.Labels.run }}}}, rank(s){{{{ $is := printf ",run=%q" $run.Labels.run }}}}'
        f'{{{{ range $place, $rank := query (printf "count by (rank) ({ranks} >= {last})" $of $is)'
        ' | sortByLabel "rank" }}{{ if $place }},{{ end }} {{ $rank.Labels.rank }}{{ end }}.'
        " Next: `observatory show {{ $run.Labels.run }}`.{{ end }}"
    )


_SEEN_HOURS = 24
"""How long a node or a GPU is missed, and what was on it known."""
