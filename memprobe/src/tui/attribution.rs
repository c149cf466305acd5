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
    /// Modules of each device.
    Modules,
    /// Categories of each device, and iterations.
    Categories,
    /// Memory by module at the peak of an iteration, for each device.
    Layers(IterationChoice),
    /// Allocating threads of each device.
    Threads,
}

/// Answer to [`super::Command::Explain`], renewed with each snapshot.
#[derive(Clone, Debug, Default)]
pub enum AttributionTables {
    /// No answer yet.
    #[default]
    Nothing,
    /// One element a device.
    Modules(Arc<Vec<DeviceModules>>),
    /// One element a device.
    Categories(Arc<Vec<DeviceCategories>>),
    /// One element a device.
    Layers(Arc<Vec<IterationLayers>>),
    /// One element a device.
    Threads(Arc<Vec<DeviceThreads>>),
}

impl AttributionTables {
    /// Returns true if both are the same answer.
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
