"""The benchmark behind `kalos bench`: what one recall costs here, beside numpy's exact brute force in the same run.

    _stats      percentiles and histograms of latencies
    _machine    the machine, named
    _loops      closed loop and paced measurement of one call, several calls taking turns
    _vectors    seeded vectors, and the exact answers that everybody's are held to
    _peers      numpy, and FAISS where it is installed
    _cases      the lane, recall by vector, recall by text
    _stores     the vector stores that people run today
    _comparison Kalos beside them: recall, latency, time to build, memory
    _plot       that comparison as a picture
    _writes     durable ingest and the acknowledged write
    _transport  the way between processes, with 1 to 16 of them
    _run        all of it, as one JSON-ready dict
    _report     that dict as tables and histograms for a terminal

Peers run inside this process; Kalos answers from another one, as it does in an application.
"""
