//! Nodes of graphs before those that they go to.

/// The nodes of a graph without loops that are reached from one, each before those that it goes to. Of several ways on the last one
/// follows where it can.
pub(crate) fn reverse_post_order<I: IntoIterator<Item = usize>>(
    nodes: usize,
    first: usize,
    successors: impl Fn(usize) -> I,
) -> Vec<usize> {
    let mut post = Vec::new();
    let mut seen = vec![false; nodes];
    let mut stack = vec![(first, false)];
    while let Some((at, left)) = stack.pop() {
        if left {
            post.push(at);
            continue;
        }
        if std::mem::replace(&mut seen[at], true) {
            continue;
        }
        stack.push((at, true));
        stack.extend(successors(at).into_iter().map(|next| (next, false)));
    }
    post.reverse();
    post
}
