//! Who gets how much of a budget that is too small for all.

/// Divides `capacity` among holders that want `wants`, as evenly as their wants allow (max-min fair).
///
/// No holder gets more than it wants, and no holder gets less than another that got more than an equal part. What cannot be divided
/// evenly goes to those that want most, so a budget smaller than the number of holders follows the demand.
///
/// ```
/// use tidegate_core::divide;
///
/// assert_eq!(divide(100, &[10, 80, 80]), [10, 45, 45]);
/// assert_eq!(divide(1, &[3, 9]), [0, 1]);
/// ```
#[must_use]
pub fn divide(capacity: u64, wants: &[u64]) -> Vec<u64> {
    let mut by_want: Vec<usize> = (0..wants.len()).collect();
    by_want.sort_by_key(|&holder| wants[holder]);

    let mut gets = vec![0; wants.len()];
    let mut left = capacity;
    for (served, &holder) in by_want.iter().enumerate() {
        let unserved = u64::try_from(wants.len() - served).expect("a length fits 64 bits");
        // Rounded down: those that want more come later and get what is left over.
        gets[holder] = wants[holder].min(left / unserved);
        left -= gets[holder];
    }
    gets
}
