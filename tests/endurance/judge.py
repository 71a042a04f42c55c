"""Decides whether measurements grow steadily over time."""
import dataclasses
import statistics


@dataclasses.dataclass
class Sample:
    at: float  # seconds since the beginning
    rss: int   # bytes
    descriptors: int
    used_pages: int
    unfinished: int  # requests
    lines: int       # of the log


def growth(times, values):
    """Growth over the whole time, by the median of the slopes of all pairs (Theil and Sen): robust
    to a third of outliers."""
    pairs = [(values[j] - values[i]) / (times[j] - times[i]) for i in range(len(times)) for j in range(i + 1, len(times))
             if times[j] > times[i]]
    return statistics.median(pairs) * (times[-1] - times[0]) if pairs else 0.0


def thinned(samples, most=300):
    step = max(1, len(samples) // most)
    return samples[::step]


def problems_of(samples, max_bytes, max_descriptors, lines_a_second):
    """Measurements that grew too much after the first third of the time, in which caches and heaps
    fill; as text."""
    begin, end = samples[0].at, samples[-1].at
    judged = thinned([sample for sample in samples if sample.at >= begin + (end - begin) / 3])
    if len(judged) < 8:
        return [f"{len(judged)} samples are too few to judge by"]
    times, found = [sample.at for sample in judged], []
    rss = growth(times, [sample.rss for sample in judged])
    if rss > max_bytes:
        found.append(f"memory: grew by {rss / 2**20:.1f} MiB in the last {times[-1] - times[0]:.0f} s; at most "
                     f"{max_bytes / 2**20:.1f} MiB are allowed")
    descriptors = growth(times, [sample.descriptors for sample in judged])
    if descriptors > max_descriptors:
        found.append(f"descriptors: {descriptors:.0f} more; at most {max_descriptors} are allowed")
    lines = (judged[-1].lines - judged[0].lines) / (times[-1] - times[0])
    if lines > lines_a_second:
        found.append(f"log: {lines:.1f} lines a second; at most {lines_a_second} are allowed")
    return found


def plot(samples, width=72, height=10):
    """Memory (MiB) and used pages over time, for a terminal."""
    out = []
    for name, values in (("memory, MiB", [s.rss / 2**20 for s in samples]), ("pages in use", [s.used_pages for s in samples])):
        low, high = min(values), max(values)
        columns = [values[min(len(values) - 1, i * len(values) // width)] for i in range(width)]
        rows = [round((value - low) / (high - low or 1) * (height - 1)) for value in columns]
        out.append(f"{name}: {low:.0f} to {high:.0f}")
        out += ["".join("*" if row == line else " " for row in rows).rstrip() for line in reversed(range(height))]
    return "\n".join(out) + f"\n{'-' * width} {samples[-1].at:.0f} s"
