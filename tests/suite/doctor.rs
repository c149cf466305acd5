//! `memprobe doctor`, and the same words where another verb finds that it cannot work.
