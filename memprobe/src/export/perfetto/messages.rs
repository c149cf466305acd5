//! Messages of a trace, as far as an export writes them. Numbers of fields are those of `protos/perfetto/trace` in
//! google/perfetto@ec5d16b14b74; each message names its file there.

use prost::Message;

/// `SEQ_INCREMENTAL_STATE_CLEARED` of `trace_packet.proto`: what was interned before is forgotten.
pub(super) const STATE_CLEARED: u32 = 1;
/// `SEQ_NEEDS_INCREMENTAL_STATE` of `trace_packet.proto`: the packet refers to interned data.
pub(super) const NEEDS_STATE: u32 = 2;

/// `common/builtin_clock.proto`.
pub(super) const CLOCK_REALTIME: u32 = 1;
pub(super) const CLOCK_MONOTONIC: u32 = 3;
pub(super) const CLOCK_MONOTONIC_COARSE: u32 = 4;

/// `CounterDescriptor.Unit` of `track_event/counter_descriptor.proto`.
pub(super) const UNIT_BYTES: i32 = 3;

/// `TrackEvent.Type` of `track_event/track_event.proto`.
pub(super) const SLICE_BEGIN: i32 = 1;
pub(super) const SLICE_END: i32 = 2;
pub(super) const INSTANT: i32 = 3;
pub(super) const COUNTER: i32 = 4;

/// `trace_packet.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TracePacket {
    #[prost(message, optional, tag = "6")]
    pub clock_snapshot: Option<ClockSnapshot>,
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "37")]
    pub profile_packet: Option<ProfilePacket>,
    #[prost(uint32, optional, tag = "58")]
    pub timestamp_clock_id: Option<u32>,
    #[prost(message, optional, tag = "59")]
    pub trace_packet_defaults: Option<TracePacketDefaults>,
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<TrackDescriptor>,
    #[prost(bool, optional, tag = "87")]
    pub first_packet_on_sequence: Option<bool>,
}

/// `trace_packet_defaults.proto`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct TracePacketDefaults {
    #[prost(uint32, optional, tag = "58")]
    pub timestamp_clock_id: Option<u32>,
}

/// `clock_snapshot.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<ClockReading>,
    #[prost(uint32, optional, tag = "2")]
    pub primary_trace_clock: Option<u32>,
}

/// `ClockSnapshot.Clock` of `clock_snapshot.proto`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct ClockReading {
    #[prost(uint32, optional, tag = "1")]
    pub clock_id: Option<u32>,
    /// Nanoseconds.
    #[prost(uint64, optional, tag = "2")]
    pub timestamp: Option<u64>,
}

/// `track_event/track_descriptor.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub process: Option<ProcessDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub counter: Option<CounterDescriptor>,
}

/// `track_event/process_descriptor.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    #[prost(string, repeated, tag = "2")]
    pub cmdline: Vec<String>,
    #[prost(string, optional, tag = "6")]
    pub process_name: Option<String>,
}

/// `track_event/counter_descriptor.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CounterDescriptor {
    #[prost(int32, optional, tag = "3")]
    pub unit: Option<i32>,
    /// Counters of one key share their vertical axis.
    #[prost(string, optional, tag = "7")]
    pub y_axis_share_key: Option<String>,
}

/// `track_event/track_event.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, optional, tag = "9")]
    pub r#type: Option<i32>,
    #[prost(uint64, optional, tag = "10")]
    pub name_iid: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    #[prost(int64, optional, tag = "30")]
    pub counter_value: Option<i64>,
    #[prost(uint64, optional, tag = "56")]
    pub callstack_iid: Option<u64>,
}

/// `track_event/debug_annotation.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DebugAnnotation {
    #[prost(uint64, optional, tag = "3")]
    pub uint_value: Option<u64>,
    #[prost(string, optional, tag = "10")]
    pub name: Option<String>,
}

/// `interned_data/interned_data.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedData {
    #[prost(message, repeated, tag = "2")]
    pub event_names: Vec<EventName>,
    #[prost(message, repeated, tag = "5")]
    pub function_names: Vec<InternedString>,
    #[prost(message, repeated, tag = "6")]
    pub frames: Vec<InternedFrame>,
    #[prost(message, repeated, tag = "7")]
    pub callstacks: Vec<Callstack>,
    #[prost(message, repeated, tag = "17")]
    pub mapping_paths: Vec<InternedString>,
    #[prost(message, repeated, tag = "18")]
    pub source_paths: Vec<InternedString>,
    #[prost(message, repeated, tag = "19")]
    pub mappings: Vec<CodeMapping>,
}

/// `EventName` of `track_event/track_event.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct EventName {
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
}

/// `profiling/profile_common.proto`. The text is `bytes` there.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedString {
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub str: Option<String>,
}

/// `Mapping` of `profiling/profile_common.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CodeMapping {
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    #[prost(uint64, repeated, packed = "false", tag = "7")]
    pub path_string_ids: Vec<u64>,
}

/// `Frame` of `profiling/profile_common.proto`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct InternedFrame {
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub function_name_id: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub mapping_id: Option<u64>,
    /// Distinguishes frames of a mapping; required with it.
    #[prost(uint64, optional, tag = "4")]
    pub rel_pc: Option<u64>,
    #[prost(uint64, optional, tag = "5")]
    pub source_path_iid: Option<u64>,
    #[prost(uint32, optional, tag = "6")]
    pub line_number: Option<u32>,
}

/// `profiling/profile_common.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Callstack {
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    /// Outermost first.
    #[prost(uint64, repeated, packed = "false", tag = "2")]
    pub frame_ids: Vec<u64>,
}

/// `profiling/profile_packet.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ProfilePacket {
    #[prost(message, repeated, tag = "5")]
    pub process_dumps: Vec<ProcessHeapSamples>,
    /// Consecutive numbers of the packets of a sequence.
    #[prost(uint64, optional, tag = "7")]
    pub index: Option<u64>,
}

/// `ProfilePacket.ProcessHeapSamples` of `profiling/profile_packet.proto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessHeapSamples {
    #[prost(uint64, optional, tag = "1")]
    pub pid: Option<u64>,
    #[prost(message, repeated, tag = "2")]
    pub samples: Vec<HeapSample>,
    #[prost(bool, optional, tag = "3")]
    pub from_startup: Option<bool>,
    /// On the clock `CLOCK_MONOTONIC_COARSE`.
    #[prost(uint64, optional, tag = "9")]
    pub timestamp: Option<u64>,
    #[prost(string, optional, tag = "11")]
    pub heap_name: Option<String>,
    /// 1: every allocation is counted.
    #[prost(uint64, optional, tag = "12")]
    pub sampling_interval_bytes: Option<u64>,
}

/// `ProfilePacket.HeapSample` of `profiling/profile_packet.proto`. All amounts are since the start.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct HeapSample {
    #[prost(uint64, optional, tag = "1")]
    pub callstack_id: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub self_allocated: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub self_freed: Option<u64>,
    #[prost(uint64, optional, tag = "5")]
    pub alloc_count: Option<u64>,
    #[prost(uint64, optional, tag = "6")]
    pub free_count: Option<u64>,
}
