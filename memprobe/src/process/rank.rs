//! The rank of a process in a distributed job, from the variables that its launcher set.

use std::collections::HashMap;

use super::facts;
use crate::event::{Rank, Tgid};

/// Variables that launchers set: rank, local rank, world size. A launcher inside another determines the
/// values, so inner launchers come first.
const LAUNCHERS: [[&str; 3]; 5] = [
    // torchrun, torch.distributed.launch, Accelerate, DeepSpeed (torch/distributed/run.py).
    ["RANK", "LOCAL_RANK", "WORLD_SIZE"],
    // Open MPI.
    [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_SIZE",
    ],
    // MVAPICH2.
    [
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_SIZE",
    ],
    // MPICH and Intel MPI.
    ["PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"],
    // srun.
    ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"],
];

impl Rank {
    /// Returns the rank of a process; `None` if no launcher set one or the job has one process.
    pub fn of(tgid: Tgid) -> Option<Self> {
        Self::parse(&facts::read_own(tgid, "environ", facts::MOST))
    }

    fn parse(environment: &[u8]) -> Option<Self> {
        let variables: HashMap<&str, u32> = environment
            .split(|byte| *byte == 0)
            .filter_map(|variable| std::str::from_utf8(variable).ok()?.split_once('='))
            .filter_map(|(name, value)| Some((name, value.parse().ok()?)))
            .collect();
        let number = |name: &str| variables.get(name).copied();
        LAUNCHERS.iter().find_map(|[global, local, world]| {
            let rank = Self {
                global: number(global)?,
                local: number(local),
                world: number(world),
            };
            let fits = rank
                .world
                .is_none_or(|world| world > 1 && rank.global < world);
            fits.then_some(rank)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(environment: &str) -> Option<(u32, Option<u32>, Option<u32>)> {
        let rank = Rank::parse(environment.replace(' ', "\0").as_bytes())?;
        Some((rank.global, rank.local, rank.world))
    }

    #[test]
    fn torchrun_gives_all_three_numbers() {
        let ranks = rank("PATH=/bin LOCAL_RANK=1 RANK=5 WORLD_SIZE=8 GROUP_RANK=1");
        assert_eq!(ranks, Some((5, Some(1), Some(8))));
    }

    #[test]
    fn recognizes_other_launchers_and_prefers_the_innermost() {
        assert_eq!(
            rank("OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4"),
            Some((2, None, Some(4)))
        );
        assert_eq!(
            rank("SLURM_PROCID=0 SLURM_NTASKS=2 RANK=3 WORLD_SIZE=4"),
            Some((3, None, Some(4)))
        );
        assert_eq!(
            rank("SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NTASKS=2"),
            Some((1, Some(1), Some(2)))
        );
    }

    #[test]
    fn who_is_alone_in_its_job_has_no_rank() {
        assert_eq!(rank("SLURM_PROCID=0 SLURM_NTASKS=1"), None);
        assert_eq!(rank("PATH=/bin HOME=/root"), None);
    }

    #[test]
    fn what_is_no_rank_is_not_taken_for_one() {
        assert_eq!(rank("RANK=captain WORLD_SIZE=4"), None);
        assert_eq!(rank("RANK=9 WORLD_SIZE=4"), None);
        assert_eq!(rank("RANK=-1"), None);
        assert_eq!(Rank::parse(b"RANK=\xff\0=\0\0RANK"), None);
    }
}
