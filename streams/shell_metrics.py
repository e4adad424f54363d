"""The worker's own numbers, for its /metrics page."""

from prometheus_client import Counter, Gauge, Histogram

MESSAGES = Counter("stethoscope_messages", "Messages read, by topic", ["topic"])
DEAD_LETTERS = Counter("stethoscope_dead_letters", "Messages not understood", ["reason"])
ENVELOPES = Counter("stethoscope_envelopes", "Envelopes sent, by kind of stage", ["stage"])
INCIDENTS = Counter("stethoscope_incident_changes", "Incident changes published")
OFFSET_GAPS = Counter("stethoscope_offset_gaps", "Offsets that were skipped in an input", ["topic"])
LAG = Gauge("stethoscope_lag_messages", "Messages not yet read", ["topic", "partition"])
WATERMARK = Gauge("stethoscope_watermark_seconds", "Event time emitted", ["stage"])
SNAPSHOT_BYTES = Gauge("stethoscope_snapshot_bytes", "Size of the last snapshot", ["stage"])
SNAPSHOT_SECONDS = Histogram("stethoscope_snapshot_seconds", "Time to store a snapshot")
