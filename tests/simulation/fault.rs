//! Faults that are planted to see whether the simulation reports them.

/// What is broken on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fault {
    #[default]
    None,
    /// The log loses what was synced.
    LogForgetsSynced,
    /// The key-value store loses what a barrier has covered.
    KvBarrierDoesNothing,
    /// The key-value store loses one page after a fold.
    KvForgetsPage,
    /// A commit returns before it is done.
    AnswersBeforeCommit,
    /// A load leaves out a message.
    LoadForgetsMessage,
    /// The clock of the broker is ahead of the one that the clients know.
    ClockAhead,
    /// A restart begins with a state that is one commit old.
    LosesLastCommit,
}
