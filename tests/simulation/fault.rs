//! Faults that are planted to see whether the simulation reports them.

/// What is broken on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fault {
    #[default]
    None,
    /// The log loses what was synced.
    LogForgetsSynced,
    /// A power cut takes the log back to the commit before the last, so neatly that the store cannot notice.
    LogLosesTail,
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
    /// A lease that ends spends two attempts.
    SkipsAttempt,
}
