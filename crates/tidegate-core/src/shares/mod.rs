//! Budgets lent in shares: holders that decide by themselves, and never spend more than the limit between them.
//!
//! A region, a gateway or a client that cannot ask for every request gets a *share* of a limit until a time. The lender ([`Lender`])
//! gives shares whose sum never exceeds what may be lent; a holder ([`Holder`]) spends from its own and renews it before it ends.
//! Any message between them may be lost, late or repeated: the lender counts a share as lent until the holder has confirmed a
//! newer one or until the share ends, and a holder counts its end from when it *asked*. So no clock is compared, and a partition
//! makes a budget less used, never overspent.
//!
//! Where the store that counts can be asked by every holder, it needs no lender: a holder takes hits there before it spends them
//! ([`Purse`]), on the limit's terms for that ([`Prepaid`]). The counter is the ledger, and a message that is lost leaves hits unused.
//!
//! All are pure: they read no clock and send nothing.

mod demand;
mod divide;
mod holder;
mod lender;
mod prepaid;
mod purse;

pub use divide::divide;
pub use holder::Holder;
pub use lender::{Claim, Lender, Lending, Share};
pub use prepaid::Prepaid;
pub use purse::{Purse, Returned};
