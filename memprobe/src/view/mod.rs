//! Text of every view: names, messages and numbers, cleaned, shortened and fitted to columns.
//!
//! Every text from the target passes [`clean`] before it is shown.

mod attribution;
mod baseline;
mod breakdown;
mod budget;
mod categories;
pub mod cells;
mod command;
mod gpus;
mod host;
mod kv_cache;
mod lines;
mod markup;
mod modules;
mod names;
mod number;
mod outside;
mod printable;
mod replay_place;
mod segments;
pub mod table;
mod tensors;
mod text;
mod waterfall;

pub use attribution::{
    Alike, before, folded, iteration, iterations_by, no_module, peak, portion, sureness,
};
pub use baseline::{baseline_kind, baseline_meaning, baseline_owner};
pub use breakdown::{BreakdownEntry, BreakdownView};
pub use budget::{budget_fact, budget_warning, capture_level};
pub use categories::{
    ByCategory, CategoryCells, category_columns, category_table_columns, headed_bytes,
    is_provisional,
};
pub use command::short_command;
pub use gpus::{device_name, gpu_fields, gpu_number, identity_line};
pub use host::{
    HostExtent, PROCESS_COLUMNS, ProcessEntry, device_gaps, doubtful_devices, driver_gap,
    process_state, rank, top_line_names,
};
pub use kv_cache::{kv_gap, kv_summary, kv_title, kv_unit, kv_usage, server_memory_words};
pub use lines::{CHANGE, GROWTH, GROWTH_PER_ITERATION, LineCells, RATE, line_columns};
pub use markup::escaped;
pub use modules::{
    LayerCells, ModuleCells, ModuleTreeCells, OfModule, RECOMPUTE, layer_columns, module_columns,
};
pub use names::{
    BEFORE_ATTACH, BLOCKS, FileNames, UNACCOUNTED, cuda_memory_kind, library_file, library_name,
    named_site, named_stack, native_place, place, pool_words, process, whole_frame,
};
pub use number::{clock, count, counted, duration, percent, rate, short_count, span};
pub use outside::{OutsideEntry, outside_columns};
pub use printable::PrintableWriter;
pub use replay_place::{REPLAY_PLACES, ReplayPlace};
pub use segments::{
    MapGlyphs, PoolSegments, SEGMENT_COLUMNS, SegmentEntry, drawing, pool_name, pools,
    segment_columns,
};
pub use tensors::{
    TensorCells, TensorGroup, consistency, full_retainer, milliseconds, retainer, shape,
    tensor_columns, tensor_kind, tensor_label, tensor_name, tensor_size_columns, tensors_label,
    whole_tensor_name,
};
pub use text::{CUT, clean, clean_message, fit, fit_end, fit_middle, width, wrap};
pub use waterfall::{
    OWNER_COLUMNS, OwnerEntry, library_family, owner_account, owner_notes, use_signs,
};
