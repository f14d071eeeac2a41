"""Print the page docs/measured/published.md: predictions of published measurements, with their errors."""

from tests.bench.analysis.prediction.published.page import page

if __name__ == "__main__":
    print(page(), end="")
