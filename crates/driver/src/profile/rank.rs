//! Whether what is estimated is in the order of what is measured.

/// Spearman's rank correlation of pairs of numbers: the correlation of their ranks, where equal numbers share the mean of theirs. `None`
/// for less than two pairs, or if all of one side are equal.
pub fn spearman(pairs: &[(f64, f64)]) -> Option<f64> {
    let ranks = [ranks(pairs.iter().map(|p| p.0)), ranks(pairs.iter().map(|p| p.1))];
    let mean = (pairs.len() as f64 + 1.0) / 2.0;
    let sum =
        |f: &dyn Fn(f64, f64) -> f64| ranks[0].iter().zip(&ranks[1]).map(|(a, b)| f(a - mean, b - mean)).sum::<f64>();
    let both = sum(&|a, b| a * b);
    let (one, other) = (sum(&|a, _| a * a), sum(&|_, b| b * b));
    (pairs.len() > 1 && one > 0.0 && other > 0.0).then(|| both / (one * other).sqrt())
}

/// The same of ratios' logarithms, each in both orders: which of two is put before the other does not count.
pub fn spearman_of_ratios(logarithms: &[(f64, f64)]) -> Option<f64> {
    let both: Vec<(f64, f64)> = logarithms.iter().flat_map(|(a, b)| [(*a, *b), (-a, -b)]).collect();
    spearman(&both)
}

fn ranks(numbers: impl Iterator<Item = f64>) -> Vec<f64> {
    let numbers: Vec<f64> = numbers.collect();
    let mut order: Vec<usize> = (0..numbers.len()).collect();
    order.sort_by(|a, b| numbers[*a].total_cmp(&numbers[*b]));
    let mut ranks = vec![0.0; numbers.len()];
    let mut begin = 0;
    while begin < order.len() {
        let same = order[begin..].iter().take_while(|i| numbers[**i] == numbers[order[begin]]).count();
        for i in &order[begin..begin + same] {
            ranks[*i] = begin as f64 + (same as f64 + 1.0) / 2.0;
        }
        begin += same;
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is(found: Option<f64>, expected: f64) {
        let found = found.expect("a number");
        assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
    }

    #[test]
    fn the_same_order_is_one_and_the_other_way_round_minus_one() {
        is(spearman(&[(1.0, 10.0), (2.0, 1000.0), (3.0, 1001.0)]), 1.0);
        is(spearman(&[(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]), -1.0);
        // By hand: differences of ranks 0, 1, 1, 0, of four.
        is(spearman(&[(1.0, 1.0), (2.0, 3.0), (3.0, 2.0), (4.0, 4.0)]), 1.0 - 6.0 * 2.0 / (4.0 * 15.0));
    }

    #[test]
    fn equal_numbers_share_their_ranks() {
        assert_eq!(ranks([5.0, 1.0, 5.0, 0.0].into_iter()), [3.5, 2.0, 3.5, 1.0]);
        assert_eq!(spearman(&[(1.0, 1.0), (1.0, 2.0)]), None);
        assert_eq!(spearman(&[(1.0, 1.0)]), None);
    }

    #[test]
    fn of_ratios_it_does_not_count_which_is_put_first() {
        let pairs = [(0.3, 0.2), (-0.1, -0.4), (0.2, 0.5), (0.05, -0.04)];
        let turned = pairs.map(|(a, b)| if a > 0.1 { (-a, -b) } else { (a, b) });
        is(spearman_of_ratios(&pairs), spearman_of_ratios(&turned).expect("a number"));
    }
}
