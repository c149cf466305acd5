//! Layouts of PyTorch's objects, by version.
//!
//! Offsets in bytes, for the x86-64 wheels. They come from `offsetof` with each wheel's own headers (`torch/include`)
//! and `std::string` ABI: 2.0.1, 2.1.2, 2.2.2, 2.3.1, 2.6.0, 2.7.1, 2.9.1, 2.10.0, 2.12.1, 2.13.0 and 2.15.0. Values
//! read by them were compared with PyTorch's own on 2.0.1, 2.2.2, 2.6.0, 2.9.1, 2.12.1 and 2.15.0. For every version a
//! row counts only if the objects of the process verify it ([`super::layouts`]).

use DeviceOrder::{PresenceFirst, PresenceLast};

pub(super) use crate::torch::versions::{Versions, is_of};

/// Offset of the pointer to the `TensorImpl` in a tensor's Python object, after the header of every Python
/// object (torch/csrc/autograd/python_variable.h).
const PLAIN: u64 = 16;
/// The same for `c10::MaybeOwned<Tensor> cdata`: a word with the ownership flag comes first.
const MAYBE_OWNED: u64 = 24;

pub(super) const HANDLES: [u64; 2] = [PLAIN, MAYBE_OWNED];

/// Memory layout of an optional device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceOrder {
    /// `c10::optional`: presence flag, type, index.
    PresenceFirst,
    /// `std::optional`: type, index, presence flag.
    PresenceLast,
}

impl DeviceOrder {
    pub(super) const ALL: [Self; 2] = [Self::PresenceFirst, Self::PresenceLast];
}

/// Offsets in a `c10::TensorImpl` (c10/core/TensorImpl.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TensorLayout {
    /// Offset of the pointer in Python objects: one of [`HANDLES`].
    pub(super) handle: u64,
    pub(super) storage: usize,
    pub(super) autograd: usize,
    pub(super) version: usize,
    /// The pointer of `pyobj_slot_` back to the Python object.
    pub(super) python: usize,
    /// `sizes_and_strides_`. All later fields follow in the same order in every version.
    pub(super) dimensions: usize,
    pub(super) device: DeviceOrder,
}

impl TensorLayout {
    // Distances from `dimensions`.
    /// Sizes of up to five dimensions; with more, a pointer to sizes and strides (c10/core/impl/SizesAndStrides.h).
    pub(super) const SIZES: usize = 8;
    /// Strides of up to five dimensions.
    pub(super) const STRIDES: usize = 48;
    pub(super) const OFFSET: usize = 88;
    pub(super) const ELEMENTS: usize = 96;
    pub(super) const DTYPE: usize = 104;
    pub(super) const DEVICE: usize = 106;
    /// The second byte of the flags, after `device_opt_`; its bit 4 is `has_symbolic_sizes_strides_`.
    pub(super) const FLAGS: usize = 110;

    /// Bytes of a `TensorImpl`. The fields of a derived class follow.
    pub(super) const fn size(&self) -> usize {
        self.dimensions + 120
    }
}

/// Offsets in a `c10::StorageImpl` (c10/core/StorageImpl.h, c10/core/Allocator.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StorageLayout {
    /// `data_ptr_`, whose first word is the address of the data.
    pub(super) data: usize,
}

impl StorageLayout {
    // Distances from `data`.
    /// The device of `data_ptr_`: type, then index.
    pub(super) const DEVICE: usize = 24;
    pub(super) const BYTES: usize = 32;

    pub(super) const fn size(&self) -> usize {
        self.data + 40
    }
}

/// Offsets in a `torch::autograd::AutogradMeta` and, for a view, a `DifferentiableViewMeta`
/// (torch/csrc/autograd/variable.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AutogradLayout {
    pub(super) grad: usize,
    pub(super) grad_fn: usize,
    /// `requires_grad_`; `is_view_` is the second byte after it.
    pub(super) requires_grad: usize,
    /// The `ViewInfo` of `backward_info_`, whose first word is the base tensor.
    pub(super) base: usize,
    pub(super) has_base: usize,
    pub(super) version: usize,
}

impl AutogradLayout {
    /// Distance from `requires_grad`.
    pub(super) const IS_VIEW: usize = 2;

    /// Bytes to read of the metadata of a tensor that is no view.
    pub(super) const fn size(&self) -> usize {
        self.requires_grad + 8
    }
}

/// Offsets in a `torch::autograd::Node` (torch/csrc/autograd/function.h) and related objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeLayout {
    pub(super) sequence: usize,
    /// `next_edges_`, a `std::vector<Edge>`.
    pub(super) edges: usize,
    /// Bytes of an `Edge`, whose first word is the next node.
    pub(super) edge: usize,
    /// Bytes of a `Node`. The fields of a derived class follow.
    pub(super) size: usize,
    pub(super) python: usize,
    pub(super) saved: SavedLayout,
}

/// Offsets in a `torch::autograd::SavedVariable` (torch/csrc/autograd/saved_variable.h), whose first word is
/// the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SavedLayout {
    /// `was_default_constructed_` and four more flags of one byte each.
    pub(super) flags: usize,
    /// `requires_grad_`, the last field.
    pub(super) requires_grad: usize,
}

impl SavedLayout {
    /// Distance from `flags`.
    pub(super) const HOOKS: usize = 8;

    pub(super) const fn size(&self) -> usize {
        self.requires_grad + 8
    }
}

pub(super) const TENSORS: &[(Versions, TensorLayout, StorageLayout)] = &[
    tensor([(2, 0), (2, 1)], MAYBE_OWNED, PresenceFirst, [24, 64]),
    tensor([(2, 2), (2, 2)], MAYBE_OWNED, PresenceLast, [24, 64]),
    tensor([(2, 3), (2, 9)], MAYBE_OWNED, PresenceLast, [16, 56]),
    tensor([(2, 10), (2, 12)], PLAIN, PresenceLast, [16, 56]),
    tensor([(2, 13), (2, 15)], PLAIN, PresenceLast, [16, 48]),
];

/// Builds a row from the offsets of `storage_` and of the pointer in `pyobj_slot_`. The former is the size of the
/// header of every `c10::intrusive_ptr_target`, which precedes the data of a storage too.
const fn tensor(
    versions: Versions,
    handle: u64,
    device: DeviceOrder,
    [storage, python]: [usize; 2],
) -> (Versions, TensorLayout, StorageLayout) {
    let layout = TensorLayout {
        handle,
        storage,
        autograd: storage + 8,
        version: storage + 24,
        python,
        dimensions: python + 8,
        device,
    };
    (versions, layout, StorageLayout { data: storage })
}

pub(super) const AUTOGRAD: &[(Versions, AutogradLayout)] = &[
    ([(2, 0), (2, 0)], autograd(16, 112, 160, (8, 0), 40)),
    ([(2, 1), (2, 1)], autograd(16, 120, 168, (8, 0), 40)),
    ([(2, 2), (2, 2)], autograd(16, 120, 168, (0, 40), 40)),
    ([(2, 3), (2, 6)], autograd(16, 120, 168, (0, 48), 48)),
    ([(2, 7), (2, 9)], autograd(40, 144, 192, (0, 48), 48)),
    ([(2, 10), (2, 12)], autograd(40, 144, 200, (0, 48), 48)),
    ([(2, 13), (2, 15)], autograd(40, 128, 184, (0, 48), 48)),
];

/// Builds a row from the offsets of `grad_`, `requires_grad_` and `backward_info_`, from two offsets within
/// `backward_info_`, and from the size of a `ViewInfo` in bytes.
///
/// The two offsets are those of the `ViewInfo` and of the presence flag: `c10::optional` has the flag first,
/// `std::optional` last. `grad_fn_` follows `grad_`. A `forward_info_` of the same type and a flag precede
/// `attr_version_`.
const fn autograd(
    grad: usize,
    requires_grad: usize,
    info: usize,
    (value, presence): (usize, usize),
    view: usize,
) -> AutogradLayout {
    AutogradLayout {
        grad,
        grad_fn: grad + 8,
        requires_grad,
        base: info + value,
        has_base: info + presence,
        version: info + 2 * (view + 8) + 4,
    }
}

pub(super) const NODES: &[(Versions, NodeLayout)] = &[
    ([(2, 0), (2, 4)], node([24, 96, 24], 472, 472, (56, 104))),
    // Up to 2.12 nodes are held by `std::shared_ptr`.
    ([(2, 5), (2, 12)], node([24, 96, 24], 472, 472, (48, 96))),
    ([(2, 13), (2, 15)], node([16, 88, 16], 464, 112, (40, 72))),
];

/// Builds a row from the fields of [`NodeLayout`] and those of its [`SavedLayout`], in their order.
const fn node(
    [sequence, edges, edge]: [usize; 3],
    size: usize,
    python: usize,
    (flags, requires_grad): (usize, usize),
) -> NodeLayout {
    NodeLayout {
        sequence,
        edges,
        edge,
        size,
        python,
        saved: SavedLayout {
            flags,
            requires_grad,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_has_one_row_of_each_table() {
        for minor in 0..=15 {
            let version = format!("2.{minor}.1+cu124");
            let rows = |versions: Vec<&Versions>| {
                let of_it = versions.iter().filter(|row| is_of(row, Some(&version)));
                of_it.count()
            };
            assert_eq!(rows(TENSORS.iter().map(|row| &row.0).collect()), 1);
            assert_eq!(rows(AUTOGRAD.iter().map(|row| &row.0).collect()), 1);
            assert_eq!(rows(NODES.iter().map(|row| &row.0).collect()), 1);
        }
    }

    #[test]
    fn what_is_no_version_has_no_row() {
        for version in [
            None,
            Some(""),
            Some("two"),
            Some("2"),
            Some("3.0"),
            Some("2.x"),
        ] {
            assert!(
                !TENSORS.iter().any(|row| is_of(&row.0, version)),
                "{version:?}"
            );
        }
    }
}
