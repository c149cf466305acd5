//! Presentation shared by every view: tables, defined once for text, CSV, JSON and the screen.

pub mod table;
