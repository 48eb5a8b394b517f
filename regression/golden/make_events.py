#!/usr/bin/env python3
"""Write events.tfevents: an event file by TensorBoard's own writer, for regression/io/test_events.

    make_events.py events.tfevents

Needs tensorboard.  All events are of the time 0, which protobuf leaves out, so the file is the same every time.
"""

import glob
import os
import struct
import sys
import tempfile

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.summary.writer.record_writer import RecordWriter

SMALL = [("Train/Samples/train_loss", 2.5), ("Train/Samples/lr", 1e-3)]
ODD = [("empty value", 0.0), ("Straße \"x\"\n\t", -1.0 / 3), ("t" * 200, 3e38), ("nan", float("nan")), ("inf", float("-inf"))]


def scalars(step, values):
    parts = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in values]
    return event_pb2.Event(wall_time=0.0, step=step, summary=summary_pb2.Summary(value=parts))


def records(data):
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield data[12 : 12 + length]
        data = data[16 + length :]


with tempfile.TemporaryDirectory() as directory:
    writer = EventFileWriter(directory)
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    writer.add_event(event_pb2.Event(step=401, session_log=start))
    writer.add_event(scalars(404, SMALL))
    writer.add_event(scalars(1 << 40, ODD))
    writer.close()
    with open(glob.glob(os.path.join(directory, "*"))[0], "rb") as file:
        data = file.read()

with open(sys.argv[1], "wb") as file:
    writer = RecordWriter(file)
    for number, record in enumerate(records(data)):
        event = event_pb2.Event.FromString(record)
        event.wall_time = 0
        if number == 0:
            event.ClearField("source_metadata")  # who wrote it, which we do not say
        writer.write(event.SerializeToString())
