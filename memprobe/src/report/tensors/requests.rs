//! Table of a server's KV cache by request.

use super::TensorOptions;
use super::heading;
use crate::event::bytes::human;
use crate::event::tensors::TensorDevice;
use crate::event::{Bytes, KvUnit};
use crate::tensors::{KvRow, KvTable, KvUsage, ServerMemory, TensorTable, server_memory};
use crate::view::table::{Cell, Column, Cut, Output, Page, Table, columns};
use crate::view::{counted, kv_gap, kv_title, kv_unit, kv_usage, percent, server_memory_words};

/// Row of a device's cache.
struct RequestRow<'a> {
    device: Option<TensorDevice>,
    unit: KvUnit,
    row: &'a KvRow,
    /// Text instead of the row's name.
    name: Option<String>,
}

/// The rows of all devices, for CSV.
pub(super) fn write_csv(table: &TensorTable, out: &mut impl std::io::Write) -> std::io::Result<()> {
    let mut all = Table::new(request_columns("UNITS"));
    for cache in &table.kv {
        all.extend(Output::Data, cache.rows.iter().map(|row| named(cache, row)));
    }
    super::csv(&all, out)
}

pub(super) fn push(page: &mut Page, table: &TensorTable, options: &TensorOptions) {
    heading::push_target(page, &table.target);
    page.note(&heading::taken(table));
    for note in heading::notes(table) {
        page.warning(&note);
    }
    if let Some(gap) = &table.kv_gap {
        page.warning(&format!(
            "note: the KV cache is not divided: {}",
            kv_gap(gap)
        ));
    }
    for cache in &table.kv {
        page.blank();
        page.fitted_strong(&kv_title(cache));
        push_cache(page, cache, options);
    }
    if table.kv.is_empty() && table.kv_gap.is_none() {
        page.blank();
        page.line("No KV cache of a server that memprobe knows (vLLM, SGLang).");
    }
    for device in &table.devices {
        let uses = server_memory(table, device);
        let Some(totals) = device.account.totals.filter(|_| !uses.is_empty()) else {
            continue;
        };
        page.blank();
        let reserved = human(totals.reserved);
        page.fitted_strong(&format!("{}  reserved {reserved}", device.device));
        let all = (totals.reserved.0).into();
        let mut memory = Table::new(memory_columns());
        memory.extend(
            Output::Text,
            uses.into_iter().map(|(usage, bytes)| MemoryRow {
                bytes,
                share: percent(bytes.0.into(), all),
                usage,
            }),
        );
        page.table(&memory);
    }
}

fn push_cache(page: &mut Page, cache: &KvTable, options: &TensorOptions) {
    let is_request = |row: &&KvRow| row.usage == KvUsage::Request;
    let requests: Vec<&KvRow> = cache.rows.iter().filter(is_request).collect();
    let head = match cache.unit {
        KvUnit::Block => "BLOCKS",
        KvUnit::Token => "TOKENS",
    };
    let shown = options.top.of(requests.len());
    let (shown, hidden) = requests.split_at(shown);
    let mut table = Table::new(request_columns(head));
    table.extend(Output::Text, shown.iter().map(|row| named(cache, row)));
    let units = hidden.iter().map(|row| row.units).sum();
    let rest = KvRow {
        usage: KvUsage::Request,
        request: None,
        units,
        shared: 0,
        bytes: cache.bytes_of(units),
    };
    if !hidden.is_empty() {
        let words = counted(hidden.len() as u64, "other request");
        let name = Some(format!("({words}: --limit all)"));
        table.push(
            Output::Text,
            RequestRow {
                name,
                ..named(cache, &rest)
            },
        );
    }
    let others = cache
        .rows
        .iter()
        .filter(|row| row.usage != KvUsage::Request);
    table.extend(Output::Text, others.map(|row| named(cache, row)));
    let first = page.table(&table).first;
    if let Some(bytes) = cache.bytes {
        let units = counted(cache.total, kv_unit(cache.unit));
        page.line(&format!("{:>first$}  in {units}", human(bytes)));
    }
}

fn named<'a>(cache: &KvTable, row: &'a KvRow) -> RequestRow<'a> {
    RequestRow {
        device: cache.device,
        unit: cache.unit,
        row,
        name: None,
    }
}

fn request_columns<'a>(units: &'static str) -> [Column<RequestRow<'a>>; 11] {
    columns![|row: RequestRow<'a>|
        figure("BYTES") => row.row.bytes.map_or(Cell::Unknown, Cell::from),
        figure(units) => Cell::Count(row.row.units),
        figure("SHARED") => match row.row.shared {
            0 => Cell::Blank,
            shared => Cell::Count(shared),
        },
        label("REQUEST").width(24, usize::MAX).cut(Cut::Middle) => match &row.name {
            Some(name) => name.clone(),
            None => kv_usage(row.row, row.unit),
        },
        data("device") => row.device.map(|device| device.to_string()),
        data("usage") => row.row.usage.key(),
        data("request") => row.row.request.as_deref(),
        data("unit") => row.unit.as_str(),
        data("units") => Cell::Count(row.row.units),
        data("shared_units") => Cell::Count(row.row.shared),
        data("bytes") => row.row.bytes,
    ]
}

struct MemoryRow {
    bytes: Bytes,
    share: String,
    usage: ServerMemory,
}

fn memory_columns() -> [Column<MemoryRow>; 3] {
    columns![|row: MemoryRow|
        figure("BYTES") => row.bytes,
        figure("SHARE") => &row.share,
        label("MEMORY").width(24, usize::MAX) => server_memory_words(row.usage),
    ]
}
