//! Sentences about estimates, each with the events that show it.
