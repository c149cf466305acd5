//! Text of every view: names, messages and numbers, cleaned, shortened and fitted to columns.
//!
//! Every text from the target passes [`clean`] before it is shown.

mod attribution;
mod host;
mod names;
mod number;
mod process;
pub mod table;
mod tensors;
mod text;

pub use attribution::{
    before, iteration, iterations_by, no_module, peak, portion, sureness, thread,
};
pub use host::{
    device_gaps, device_list, driver_gap, process_state, rank, short_command, top_line,
};
pub use names::{
    BEFORE_ATTACH, BLOCKS, FileNames, UNACCOUNTED, named_site, named_stack, native_place, place,
    whole_frame,
};
pub use number::{clock, count, counted, duration, percent, rate, short_count, span};
pub use process::process;
pub use tensors::{
    consistency, full_retainer, milliseconds, retainer, shape, tensor_kind, tensor_label,
    tensor_name, tensors_label, whole_tensor_name,
};
pub use text::{CUT, clean, fit, fit_end, fit_middle, width, wrap};
