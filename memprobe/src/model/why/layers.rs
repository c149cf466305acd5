//! What each module held, and for what, when its device held most.

use super::category::Category;
use super::ledger::WhyLedger;
use super::modules::{ModuleRow, Together, tree};
use super::moments::Moment;
use super::parts::{Place, place_of};
use crate::event::{Context, DeviceIndex, Module, NamedBlock, NoStack, Stack, StackKind};
use crate::tensors::TensorKind;

/// What the modules of a device held when it held most. The sum of all, with what is from before attach and unaccounted, is what was
/// allocated then.
#[derive(Clone, Debug)]
pub struct DeviceLayers {
    /// That moment.
    pub peak: Moment,
    /// The outermost modules, in the order in which they first asked for memory.
    pub modules: Vec<ModuleRow<Layer>>,
    /// What is no module's.
    pub others: Vec<(Place, Layer)>,
}

/// Bytes of a module, by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    by_category: [u64; Category::ALL.len()],
}

impl Layer {
    fn with(category: Category, bytes: u64) -> Self {
        let mut layer = Self::default();
        layer.by_category[category as usize] = bytes;
        layer
    }

    /// Bytes of a category.
    pub fn of(&self, category: Category) -> u64 {
        self.by_category[category as usize]
    }

    /// Bytes of all.
    pub fn all(&self) -> u64 {
        let all = self.by_category.iter().copied();
        all.fold(0, u64::saturating_add)
    }
}

impl Together for Layer {
    fn and(self, other: &Self) -> Self {
        Self {
            by_category: std::array::from_fn(|at| {
                self.by_category[at].saturating_add(other.by_category[at])
            }),
        }
    }
}

impl WhyLedger {
    /// What the modules of a device held when it held most; `None` where that is not counted ([`Self::with_sizes`]).
    pub fn layers(&self, index: DeviceIndex) -> Option<DeviceLayers> {
        let making = self.making.as_ref()?;
        let device = self.devices.get(&index)?;
        let mut held: Vec<_> = device.held.iter().collect();
        // In the order in which stacks were met: that of the model.
        held.sort_unstable_by_key(|(place, _)| **place);
        let parts = held.into_iter().map(|((origin, category), holding)| {
            let place = match self.origins.get(*origin as usize) {
                None => Place::Unknown,
                Some(stack) => match place_of(stack).0 {
                    Place::Module(held) if making.is_held(*origin) => {
                        Place::Module(making.called(&held))
                    }
                    place => place,
                },
            };
            let bytes = holding.as_of(device.peaks).at_peak;
            (place, Layer::with(*category, bytes))
        });
        let (modules, others) = tree(parts.filter(|(_, layer)| layer.all() > 0));
        Some(DeviceLayers {
            peak: device.peak.clone(),
            modules,
            others,
        })
    }

    /// Whether the process's own objects said what modules keep.
    pub fn names_modules(&self) -> bool {
        let making = self.making.as_ref();
        making.is_some_and(|making| making.kept.is_some())
    }

    /// What stands for the stack of a block that the process's objects put into a module; `None` where they do not, or that is not asked
    /// for.
    pub(super) fn origin_in_module(&mut self, named: &NamedBlock) -> Option<u32> {
        self.making.as_ref()?;
        let stays = matches!(
            named.kind,
            Some(TensorKind::Parameter | TensorKind::Buffer | TensorKind::OptimizerState)
        );
        let module = named.module.as_ref().filter(|_| stays)?;
        let stack = Stack {
            kind: StackKind::Unknown {
                thread: "".into(),
                reason: NoStack::Lost,
            },
            frames: Vec::new(),
            truncated: false,
            context: Context {
                module: Module::Called(module.clone()),
                ..Context::default()
            },
        };
        let origin = Some(self.origin(&stack.into())).filter(|origin| *origin != 0)?;
        self.making.as_mut()?.hold(origin);
        Some(origin)
    }
}

#[cfg(test)]
mod tests {
    use super::super::parts::samples::{DEVICE, learning, learning_for};
    use super::*;

    #[test]
    fn what_layers_held_at_the_peak_adds_up_to_what_was_allocated() {
        for program in [learning(), learning_for(4, |_| true)] {
            let mut ledger = WhyLedger::new(None).with_sizes();
            program.play(|event, applied, _| ledger.apply(event, applied));
            let layers = ledger.layers(DEVICE).expect("a device");
            let modules = layers.modules.iter().map(|row| &row.total);
            let others = layers.others.iter().map(|(_, layer)| layer);
            let all = modules.chain(others).fold(Layer::default(), Layer::and);
            let composition = &layers.peak.composition;
            for category in Category::ALL {
                assert_eq!(all.of(category), composition.of(category), "{category:?}");
            }
            let known = all.all() + composition.before_attach;
            assert_eq!(known, layers.peak.totals.allocated.0);
        }
    }
}
