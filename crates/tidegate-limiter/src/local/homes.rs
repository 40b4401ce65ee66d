//! Which home store counts the cells of a rule for all regions: one for each domain.

use tidegate_core::{Scope, take_part};

/// Something for each home store, found by the domain of a cell.
pub(crate) struct Homes<T> {
    all: Vec<T>,
    by_domain: Vec<(Box<[u8]>, usize)>,
    /// The home of all other domains.
    usual: Option<usize>,
}

impl<T> Homes<T> {
    /// None at all: every region counts for itself.
    pub(crate) fn none() -> Self {
        Homes { all: Vec::new(), by_domain: Vec::new(), usual: None }
    }

    /// Adds a home of these domains; of all others, if there are none.
    pub(crate) fn add(&mut self, domains: &[String], home: T) {
        let place = self.all.len();
        self.by_domain.extend(domains.iter().map(|domain| (domain.as_bytes().into(), place)));
        if domains.is_empty() {
            self.usual = Some(place);
        }
        self.all.push(home);
    }

    /// The home of cells with this scope.
    pub(crate) fn of(&self, scope: &Scope) -> Option<&T> {
        if self.all.is_empty() {
            return None;
        }
        let (domain, _) = take_part(scope.as_bytes())?;
        self.of_domain(domain)
    }

    /// The home of the rules of a domain.
    pub(crate) fn of_domain(&self, domain: &[u8]) -> Option<&T> {
        self.place_of(domain).map(|place| &self.all[place])
    }

    /// Which of [`Homes::iter`] that is.
    pub(crate) fn place_of(&self, domain: &[u8]) -> Option<usize> {
        let named = self.by_domain.iter().find(|(name, _)| **name == *domain);
        named.map(|(_, place)| *place).or(self.usual)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.all.iter()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

impl<T: Clone> Clone for Homes<T> {
    fn clone(&self) -> Self {
        Homes { all: self.all.clone(), by_domain: self.by_domain.clone(), usual: self.usual }
    }
}
