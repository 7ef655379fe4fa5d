//! Where the cuts fell, and what came of them.

use std::fmt;

use crate::durability::ledger::Wrongs;

/// What the broker did when the power was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its first start made the store.
    Creation,
    /// It served, and its fold thread had nothing to do.
    Load,
    /// It served, and a fold was under way.
    Fold,
    /// It served, and a compaction was under way.
    Compaction,
    /// It had started on what the cut before had left, and did not serve yet.
    Recovery,
}

const PHASES: [Phase; 5] = [Phase::Creation, Phase::Load, Phase::Fold, Phase::Compaction, Phase::Recovery];

/// The cuts of one file system.
#[derive(Default)]
pub(crate) struct Tally {
    cuts: [u64; PHASES.len()],
    confirmed: usize,
    wrongs: Wrongs,
}

impl Tally {
    pub(crate) fn cut(&mut self, phase: Phase) {
        self.cuts[phase as usize] += 1;
    }

    pub(crate) fn add(&mut self, confirmed: usize, wrongs: Wrongs) {
        self.confirmed += confirmed;
        self.wrongs.lost += wrongs.lost;
        self.wrongs.early += wrongs.early;
        self.wrongs.resurrected += wrongs.resurrected;
        self.wrongs.shifted += wrongs.shifted;
    }

    /// Nothing may be wrong, and a long run must have been everywhere.
    pub(crate) fn must_be_right(&self, rounds: u64) {
        assert!(self.confirmed > 0, "nothing was confirmed");
        assert_eq!(self.wrongs, Wrongs::default(), "of {} confirmed changes", self.confirmed);
        for phase in [Phase::Load, Phase::Fold, Phase::Compaction, Phase::Recovery] {
            let cuts = self.cuts[phase as usize];
            assert!(cuts >= rounds / 10, "{cuts} of {rounds} rounds had a cut in {phase}: too few");
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cuts (", self.cuts.iter().sum::<u64>())?;
        for (n, phase) in PHASES.into_iter().enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            write!(f, "{comma}{phase} {}", self.cuts[phase as usize])?;
        }
        write!(f, "), {} confirmed, {}", self.confirmed, self.wrongs)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Creation => "creation",
            Self::Load => "load",
            Self::Fold => "fold",
            Self::Compaction => "compaction",
            Self::Recovery => "recovery",
        })
    }
}
