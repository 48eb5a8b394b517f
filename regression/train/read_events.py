#!/usr/bin/env python3
"""Print what TensorBoard's own reader makes of the event files of a directory, a line a number: step tag value.

    read_events.py DIRECTORY

Needs tensorboard.  What was given up by a run that went on is purged, as on TensorBoard's page.
"""

import logging
import sys

logging.disable(logging.WARNING)  # it says what it purges
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0}, purge_orphaned_data=True)
events.Reload()
for tag in events.Tags()["scalars"]:
    for number in events.Scalars(tag):
        print("%d %s %.9g" % (number.step, tag, number.value))
