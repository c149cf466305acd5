//! Cells and names of the keys that memory is compared by.

use crate::attribution::allocation_groups::ModuleScope;
use crate::compare::{CompareBy, ComparedKey};
use crate::ledger::snapshot::{PurposeInfo, Site};
use crate::report::cells::purpose_kind;
use crate::report::peak::{Called, called_name, place_name};
use crate::report::shapes;
use crate::view::FileNames;

/// Keyword in CSV and JSON.
pub(in crate::report) const fn key_of_table(by: CompareBy) -> &'static str {
    match by {
        CompareBy::Line => "line",
        CompareBy::Tensor => "tensor",
        CompareBy::Module => "module",
        CompareBy::Category => "category",
    }
}

/// Heading in text.
pub(in crate::report) const fn head_of_table(by: CompareBy) -> &'static str {
    match by {
        CompareBy::Line => "LINE",
        CompareBy::Tensor => "TENSOR",
        CompareBy::Module => "MODULE",
        CompareBy::Category => "CATEGORY",
    }
}

pub(in crate::report) fn site_of(key: Option<&ComparedKey>) -> Option<&Site> {
    match key {
        Some(ComparedKey::Line(site)) => Some(site),
        _ => None,
    }
}

pub(super) fn tensor_of(key: Option<&ComparedKey>) -> Option<&PurposeInfo> {
    match key {
        Some(ComparedKey::Tensor(tensor)) => Some(tensor),
        _ => None,
    }
}

pub(in crate::report) fn category_of(key: Option<&ComparedKey>) -> Option<&'static str> {
    match key {
        Some(ComparedKey::Category(category)) => Some(category.key()),
        _ => None,
    }
}

pub(in crate::report) fn module_of(key: Option<&ComparedKey>) -> Option<String> {
    match key {
        Some(ComparedKey::Module { place, .. }) if matches!(place, ModuleScope::Module(_)) => {
            Some(place_name(place))
        }
        _ => None,
    }
}

pub(in crate::report) fn pass_of(key: Option<&ComparedKey>) -> Option<&'static str> {
    match key {
        Some(ComparedKey::Module { pass, .. }) => Some(pass.as_str()),
        _ => None,
    }
}

pub(in crate::report) fn kind_of(key: &ComparedKey) -> &'static str {
    match key {
        ComparedKey::Line(site) => site.as_str(),
        ComparedKey::Tensor(tensor) => purpose_kind(tensor),
        ComparedKey::Module { place, .. } => place.as_str(),
        ComparedKey::Category(_) => "category",
    }
}

/// Files of the lines among some keys.
pub(in crate::report) fn file_names<'a>(keys: impl Iterator<Item = &'a ComparedKey>) -> FileNames {
    let frames = keys.filter_map(|key| site_of(Some(key))?.frame());
    FileNames::of(frames.map(|frame| &frame.file))
}

pub(in crate::report) fn name_of(key: &ComparedKey, names: &FileNames) -> String {
    match key {
        ComparedKey::Line(site) => names.site(site),
        ComparedKey::Tensor(tensor) => shapes::tensor(tensor),
        ComparedKey::Module { place, pass } => called_name(&Called {
            place: place.clone(),
            pass: *pass,
        }),
        ComparedKey::Category(category) => category.as_str().to_owned(),
    }
}
