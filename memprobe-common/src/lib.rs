//! The plain data that crosses the kernel boundary: what memprobe's eBPF programs write and
//! user space reads, and the other way round. `repr(C)`, explicit padding, sizes asserted,
//! integers only: a reader checks every value before it becomes an enum.
#![no_std]
