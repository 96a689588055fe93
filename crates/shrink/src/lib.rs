//! Making what fails smaller (delta debugging; Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing
//! Input", 2002).
//!
//! One idea: take away large parts first, then smaller ones; what still fails without a part never needs it again.

/// The smallest list found that `still_fails`: of the given one, in its order. Taking away any one element of it does
/// not fail any more, unless `still_fails` said so only because its time was up.
///
/// `list` itself is taken to fail. `still_fails` may say no for any reason, such as a deadline.
///
/// # Examples
///
/// ```
/// let left = bpf_shrink::shrink((0..100).collect(), |list| list.contains(&7) && list.contains(&42));
/// assert_eq!(left, [7, 42]);
/// ```
pub fn shrink<T: Clone>(list: Vec<T>, mut still_fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut list = list;
    let mut part = list.len().div_ceil(2).max(1);
    while !list.is_empty() {
        let mut at = 0;
        let mut smaller = false;
        while at < list.len() {
            let end = (at + part).min(list.len());
            let rest = [&list[..at], &list[end..]].concat();
            if still_fails(&rest) {
                list = rest;
                smaller = true;
            } else {
                at = end;
            }
        }
        match (part, smaller) {
            (1, false) => break,
            (1, true) => {}
            _ => part = part.div_ceil(2),
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::shrink;

    #[test]
    fn only_what_matters_is_left() {
        for n in [1, 2, 3, 17, 100] {
            let list: Vec<usize> = (0..n).collect();
            let needed = [n / 3, n - 1];
            let mut asked = 0;
            let left = shrink(list, |l| {
                asked += 1;
                needed.iter().all(|x| l.contains(x))
            });
            let mut needed = needed.to_vec();
            needed.dedup();
            assert_eq!(left, needed, "{n}");
            assert!(asked < 30 * n + 10, "{n}: {asked}");
        }
    }

    #[test]
    fn what_always_fails_shrinks_to_nothing() {
        assert!(shrink(vec![1, 2, 3], |_| true).is_empty());
    }

    #[test]
    fn what_needs_everything_stays() {
        assert_eq!(shrink(vec![1, 2, 3], |l| l.len() == 3), [1, 2, 3]);
    }
}
