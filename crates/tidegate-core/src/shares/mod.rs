//! Budgets lent in shares: holders that decide by themselves, and never spend more than the limit between them.
//!
//! A region, a gateway or a client that cannot ask for every request gets a *share* of a limit until a time. The lender ([`Lender`])
//! gives shares whose sum never exceeds what may be lent; a holder ([`Holder`]) spends from its own and renews it before it ends.
//! Any message between them may be lost, late or repeated: the lender counts a share as lent until the holder has confirmed a
//! newer one or until the share ends, and a holder counts its end from when it *asked*. So no clock is compared, and a partition
//! makes a budget less used, never overspent.
//!
//! Both are pure: they read no clock and send nothing.

mod demand;
mod divide;
mod holder;
mod lender;

pub use divide::divide;
pub use holder::Holder;
pub use lender::{Claim, Lender, Lending, Share};
