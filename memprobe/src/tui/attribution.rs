//! Attribution tables that screens request from the caller.

use std::sync::Arc;

use crate::attribution::tables::{
    DeviceCategories, DeviceModules, DeviceThreads, IterationChoice, IterationLayers,
};

/// Attribution table that a screen needs. Tables are costly to build, so only the one on screen is requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AttributionQuery {
    #[default]
    Nothing,
    Modules,
    Categories,
    Layers(IterationChoice),
    Threads,
}

/// Answer to [`super::Command::Explain`], renewed with each snapshot.
#[derive(Clone, Debug, Default)]
pub enum AttributionTables {
    #[default]
    Nothing,
    Modules(Arc<Vec<DeviceModules>>),
    Categories(Arc<Vec<DeviceCategories>>),
    Layers(Arc<Vec<IterationLayers>>),
    Threads(Arc<Vec<DeviceThreads>>),
}

impl AttributionTables {
    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nothing, Self::Nothing) => true,
            (Self::Modules(one), Self::Modules(other)) => Arc::ptr_eq(one, other),
            (Self::Categories(one), Self::Categories(other)) => Arc::ptr_eq(one, other),
            (Self::Layers(one), Self::Layers(other)) => Arc::ptr_eq(one, other),
            (Self::Threads(one), Self::Threads(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}
