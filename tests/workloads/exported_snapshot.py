"""Reads a snapshot that `memprobe export` wrote, as PyTorch's own tools do, and compares it with PyTorch's account.

    python exported_snapshot.py EXPORT [--history PICKLE] [--segments TRUTH] [--same-as PICKLE]

`--history` is PyTorch's snapshot of the same run, whose history the export's begins with. `--segments` is the JSON
account that segments.py wrote at the moment of the end. `--same-as` is a pickle with equal content. Prints counts of what
was compared, as JSON; a difference is an error.
"""

import argparse
import collections
import importlib.util
import json
import pathlib
import pickle
import pickletools


def memory_viz():
    """PyTorch's tools for snapshots. Their file needs nothing else of PyTorch, whose import takes seconds."""
    torch = pathlib.Path(importlib.util.find_spec("torch").origin)
    spec = importlib.util.spec_from_file_location("memory_viz", torch.with_name("cuda") / "_memory_viz.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


viz = memory_viz()

# Opcodes that the page's own reader knows (torch/utils/viz/MemoryViz.js).
OPCODES = {
    "PROTO", "FRAME", "MARK", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1",
    "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1",
    "TUPLE2", "TUPLE3", "LIST", "DICT", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "BINPUT", "LONG_BINPUT",
    "MEMOIZE", "BINGET", "LONG_BINGET",
}

UNKNOWN_STREAM = -1


def load(path):
    with open(path, "rb") as file:
        return pickle.load(file)


def check_opcodes(path):
    """The page reads protocols 2 to 4, and no opcode beyond a few."""
    with open(path, "rb") as file:
        content = file.read()
    assert 2 <= content[1] <= 4, content[1]
    unknown = {opcode.name for opcode, _, _ in pickletools.genops(content)} - OPCODES
    assert not unknown, unknown


def check_tools(snapshot):
    """PyTorch's own tools read the snapshot. Those of PyTorch 2.0 lack plots, and fail on its own snapshots."""
    if not hasattr(viz, "segment_plot"):
        return 0
    assert "total_reserved" in viz.segsum(snapshot) or snapshot["segments"] == []
    assert "entries" in viz.trace(snapshot)
    for plot in (viz.trace_plot, viz.segment_plot):
        assert "base64" in plot(snapshot)
    lines = viz.memory(snapshot, format_flamegraph=lambda text: text)
    return len(lines.splitlines())


def check_state(snapshot):
    """The page replays the trace backwards from the end: each block must lie in a segment, each free must find its block."""
    replayed = 0
    for device, trace in enumerate(snapshot["device_traces"]):
        segments = {}
        blocks = {}
        for segment in snapshot["segments"]:
            if segment["device"] != device:
                continue
            segments[segment["address"]] = segment["total_size"]
            sizes = 0
            for block in segment["blocks"]:
                assert block["address"] == segment["address"] + sizes, (segment, block)
                sizes += block["size"]
                if block["state"] != "inactive":
                    blocks[block["address"]] = block["state"] == "active_pending_free"
            assert sizes == segment["total_size"], segment

        def is_placed(addr):
            return any(start <= addr < start + size for start, size in segments.items())

        for event in reversed(trace):
            action, addr = event["action"], event.get("addr")
            if action == "free_completed":
                assert addr not in blocks, event
                blocks[addr] = True
            elif action == "free_requested":
                assert blocks[addr], event
                blocks[addr] = False
            elif action == "alloc":
                assert is_placed(addr), event
                assert blocks.pop(addr) is False, event
            elif action == "segment_alloc":
                assert segments.pop(addr) == event["size"], event
            elif action == "segment_free":
                assert addr not in segments, event
                segments[addr] = event["size"]
            replayed += 1
        # What is left was there before the recording: live, or freed and awaiting an event.
    return replayed


def compare_history(ours, theirs):
    """PyTorch's history is the begin of ours: same events, addresses, requested bytes, streams and stacks."""
    counts = collections.Counter()
    # PyTorch 2.0.1 writes none.
    known = theirs.get("allocator_settings", {})
    counts["settings of PyTorch"] = len(known)
    for key, value in ours.get("allocator_settings", {}).items():
        if key in known:
            assert value == known[key], (key, value, known[key])
            counts["settings"] += 1
    for trace, expected in zip(ours["device_traces"], theirs["device_traces"]):
        for entry, event in zip(trace, expected):
            if event["action"] == "oom":
                assert (entry["action"], entry["size"]) == ("oom", event["size"]), (entry, event)
                counts["oom"] += 1
                continue
            keys = ["action", "addr"]
            if entry["stream"] == UNKNOWN_STREAM:
                # The segment came and went between two readings of the allocator's tables.
                counts["unknown streams"] += 1
            else:
                keys += ["stream"] + ["pool_id"] * ("pool_id" in event)
            assert [entry.get(key) for key in keys] == [event[key] for key in keys], (entry, event)
            # PyTorch 2.0 and 2.1 record no times.
            if "time_us" in event:
                assert abs(entry["time_us"] - event["time_us"]) < 2_000_000, (entry, event)
            # memprobe knows the requested bytes of tensors, and else those of the block.
            if entry["size"] == event["size"]:
                counts["sizes"] += 1
            else:
                # The allocator leaves a rest of less than 1 MiB in the block.
                assert event["size"] < entry["size"] <= event["size"] + (1 << 20), (entry, event)
                counts["sizes of blocks"] += 1
            if entry["action"] in ("alloc", "segment_alloc") and event["frames"]:
                # memprobe also knows the native function that called into CUDA.
                frames = [frame for frame in entry["frames"] if ".so" not in frame["filename"]]
                assert frames == event["frames"], (entry, event)
                counts["stacks"] += 1
            counts[entry["action"]] += 1
        assert len(trace) >= len(expected), (len(trace), len(expected))
    return counts


def compare_segments(ours, truth):
    """Segments and blocks are those of torch.cuda.memory_snapshot()."""
    keys = ["device", "address", "total_size", "allocated_size", "active_size", "stream", "segment_type", "is_expandable"]
    with open(truth) as file:
        truth = json.load(file)["segments"]
    keys = [key for key in keys if key in truth[0]]

    def described(segments):
        described = {}
        for segment in segments:
            blocks = [[block[key] for key in ("address", "size", "state")] for block in segment["blocks"]]
            # PyTorch 2.0 does not name the pool of a segment.
            pool = list(segment["segment_pool_id"]) if "segment_pool_id" in truth[0] else None
            described[segment["device"], segment["address"]] = [segment[key] for key in keys], pool, blocks
        return described

    ours, theirs = described(ours["segments"]), described(truth)
    assert ours.keys() == theirs.keys(), (ours.keys(), theirs.keys())
    for key, segment in theirs.items():
        assert ours[key] == segment, (ours[key], segment)
    return sum(len(blocks) for _, _, blocks in theirs.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("export")
    parser.add_argument("--history")
    parser.add_argument("--segments")
    parser.add_argument("--same-as")
    options = parser.parse_args()
    check_opcodes(options.export)
    snapshot = load(options.export)
    counts = {"flame": check_tools(snapshot)}
    if options.same_as:
        other = load(options.same_as)
        assert snapshot == other
        assert snapshot["segments"] and [type(snapshot), list(snapshot)] == [type(other), list(other)]
    else:
        counts["replayed"] = check_state(snapshot)
    if options.history:
        counts.update(compare_history(snapshot, load(options.history)))
    if options.segments:
        counts["blocks"] = compare_segments(snapshot, options.segments)
    events = [event for trace in snapshot["device_traces"] for event in trace]
    counts["categories"] = len({event.get("category") for event in events})
    counts["modules"] = len({event["user_metadata"].get("module") for event in events if event.get("user_metadata")})
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
