//! Serialized form of the root that keeps a storage alive.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::MAX_CONTEXT;
use crate::event::tensors::Retainer;

#[derive(Serialize, Deserialize)]
pub(crate) struct RetainerRecord<'a> {
    #[serde(borrow, alias = "by")]
    root: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    through: Option<Cow<'a, str>>,
    #[serde(alias = "alone")]
    exclusive: bool,
}

impl<'a> From<&'a Retainer> for RetainerRecord<'a> {
    fn from(retainer: &'a Retainer) -> Self {
        let text = |text: &'a Option<Arc<str>>| text.as_deref().map(clipped);
        Self {
            root: clipped(&retainer.by),
            class: text(&retainer.class),
            slot: text(&retainer.slot),
            through: text(&retainer.through),
            exclusive: retainer.exclusive,
        }
    }
}

impl RetainerRecord<'_> {
    /// Checks the lengths of the texts and interns them. An error describes the fault in a few words.
    pub(super) fn read(
        &self,
        mut intern: impl FnMut(&str) -> Arc<str>,
    ) -> Result<Retainer, String> {
        let texts = [&self.class, &self.slot, &self.through].map(Option::as_deref);
        let all = texts.iter().flatten().copied().chain([&*self.root]);
        if let Some(long) = all.map(str::len).find(|length| *length > MAX_CONTEXT) {
            return Err(format!("a name of {long} bytes"));
        }
        let [class, slot, through] = texts.map(|text| text.map(&mut intern));
        Ok(Retainer {
            by: intern(&self.root),
            class,
            slot,
            through,
            exclusive: self.exclusive,
        })
    }
}

/// Cuts a text to [`MAX_CONTEXT`] bytes at a character boundary.
pub(super) fn clipped(text: &str) -> Cow<'_, str> {
    let mut end = text.len().min(MAX_CONTEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].into()
}
