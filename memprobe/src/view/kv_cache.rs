//! Words about a server's KV cache.

use super::number::{count, counted};
use super::text::clean;
use crate::event::bytes::human;
use crate::event::{KvGap, KvUnit};
use crate::tensors::{KvBytesSource, KvRow, KvTable, KvUsage, ServerMemory};

/// Returns the reason that a KV cache is not divided.
pub fn kv_gap(gap: &KvGap) -> String {
    match gap {
        KvGap::NoScheduler => "the process has no objects of a scheduler".to_owned(),
        KvGap::Other(words) => clean(words),
    }
}

/// Returns the name of a unit.
pub const fn kv_unit(unit: KvUnit) -> &'static str {
    match unit {
        KvUnit::Block => "block",
        KvUnit::Token => "token slot",
    }
}

/// Returns the request of a row, or its use in parentheses.
pub fn kv_usage(row: &KvRow, unit: KvUnit) -> String {
    let words = match row.usage {
        KvUsage::Request => {
            let id = row.request.as_deref().unwrap_or_default();
            return clean(id);
        }
        KvUsage::Shared if unit == KvUnit::Token => "(prefixes that requests use, counted once)",
        KvUsage::Shared => "(shared by several requests, counted once)",
        KvUsage::Cached => "(cached: no request uses it, kept for requests with the same prefix)",
        KvUsage::Free => "(free)",
        KvUsage::Reserved => "(reserved by the scheduler: null block or padding)",
        KvUsage::Unclaimed => "(in use by no request that was found)",
        KvUsage::Undivided => "(prefix cache, in use or not: its counts are not in Python)",
        KvUsage::Rest => "(beyond the last unit: padding and rounding)",
    };
    words.to_owned()
}

/// Returns the head of a table: what was read, and the sizes.
pub fn kv_title(table: &KvTable) -> String {
    let device = table.device.map_or_else(
        || "KV cache".to_owned(),
        |device| format!("{device}  KV cache"),
    );
    let bytes = table
        .bytes
        .map_or_else(|| "of unknown size".to_owned(), human);
    let units = counted(table.total, kv_unit(table.unit));
    let mut facts = Vec::new();
    facts.extend(
        table
            .unit_bytes
            .map(|bytes| format!("{} each", human(bytes))),
    );
    let tokens = table
        .tokens_per_unit
        .filter(|_| table.unit == KvUnit::Block);
    facts.extend(tokens.map(|tokens| counted(tokens, "token")));
    let facts = facts.join(", ");
    let facts = Some(facts).filter(|facts| !facts.is_empty());
    let facts = facts.map_or_else(String::new, |facts| format!(" ({facts})"));
    let place = table
        .scheduler
        .map_or_else(String::new, |tgid| format!(" in PID {}", tgid.0));
    let source = match table.source {
        KvBytesSource::Tensors => "",
        KvBytesSource::Configuration => "; bytes as configured: its tensors are in other processes",
        KvBytesSource::Unknown => "; its tensors were not found",
    };
    let class = clean(&table.class);
    format!("{device} {bytes}, {units}{facts}, as {class}{place} says{source}")
}

/// Returns the use of a KV cache in one line.
pub fn kv_summary(table: &KvTable) -> String {
    let part = |words: &str, usage: KvUsage| {
        let units = table.units(usage);
        let bytes = table.bytes_of(units);
        let size = bytes.map_or_else(|| count(units), human);
        (units > 0).then(|| format!("{words} {size}"))
    };
    let requests = counted(table.requests() as u64, "request");
    let parts = [
        part(&requests, KvUsage::Request),
        part("shared", KvUsage::Shared),
        part("cached", KvUsage::Cached),
        part("in use by no known request", KvUsage::Unclaimed),
        part("in a prefix cache", KvUsage::Undivided),
        part("free", KvUsage::Free),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    parts.join(", ")
}

/// Returns the words for a use of a server's memory.
pub const fn server_memory_words(usage: ServerMemory) -> &'static str {
    match usage {
        ServerMemory::Weights => "weights and buffers of modules",
        ServerMemory::KvCache => "KV cache",
        ServerMemory::Training => "gradients and optimizer state",
        ServerMemory::Activations => "activations saved for backward",
        ServerMemory::OtherTensors => "other tensors: activations, inputs, tables",
        ServerMemory::NoTensor => "blocks without a tensor: workspaces, CUDA graphs",
        ServerMemory::PrivatePools => "free in private pools: CUDA graphs, MemPool",
        ServerMemory::Cached => "cached: reserved by PyTorch, not allocated",
        ServerMemory::Remainder => "remainder",
    }
}
