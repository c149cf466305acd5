//! Immediate dominators of a graph, in `O(m log n)` and without recursion: Lengauer and Tarjan, "A fast algorithm
//! for finding dominators in a flowgraph", 1979 (the simple variant).

pub(super) const NONE: u32 = u32::MAX;

/// A directed graph of numbered vertices, as adjacency arrays.
#[derive(Debug, Default)]
pub(super) struct Graph {
    /// Start of each vertex's edges in `to`, and the end of the last ones.
    first: Vec<u32>,
    to: Vec<u32>,
}

impl Graph {
    /// Builds a graph from edges. Skips edges with a vertex out of range.
    pub fn of(vertices: usize, edges: &[(u32, u32)]) -> Self {
        let is_there = |edge: &&(u32, u32)| edge.0.max(edge.1) < vertices as u32;
        let mut first = vec![0; vertices + 1];
        for (from, _) in edges.iter().filter(is_there) {
            first[*from as usize + 1] += 1;
        }
        for at in 1..first.len() {
            first[at] += first[at - 1];
        }
        let mut next = first.clone();
        let mut to = vec![0; first.last().map_or(0, |end| *end as usize)];
        for (from, target) in edges.iter().filter(is_there) {
            let place = &mut next[*from as usize];
            to[*place as usize] = *target;
            *place += 1;
        }
        Self { first, to }
    }

    pub fn vertices(&self) -> usize {
        self.first.len().saturating_sub(1)
    }

    pub fn next(&self, vertex: u32) -> &[u32] {
        let at = vertex as usize;
        &self.to[self.first[at] as usize..self.first[at + 1] as usize]
    }
}

#[derive(Debug)]
pub(super) struct DominatorTree {
    /// The reachable vertices, each after its dominator.
    pub(super) order: Vec<u32>,
    /// Immediate dominator of each vertex; [`NONE`] for the root and for unreachable vertices.
    pub(super) dominators: Vec<u32>,
}

pub fn dominators(graph: &Graph, root: u32) -> DominatorTree {
    let walk = Walk::from(graph, root);
    let count = walk.order.len();
    let mut forest = Forest {
        ancestor: vec![NONE; count],
        label: (0..count as u32).collect(),
        semi: (0..count as u32).collect(),
        way: Vec::new(),
    };
    let before = walk.predecessors(graph);
    let mut dominator = vec![NONE; count];
    // Vertices with the same semidominator, as a linked list through `following`.
    let mut bucket = vec![NONE; count];
    let mut following = vec![NONE; count];
    for vertex in (1..count as u32).rev() {
        let at = vertex as usize;
        for &from in before.next(vertex) {
            let least = forest.least(from);
            forest.semi[at] = forest.semi[at].min(forest.semi[least as usize]);
        }
        let semi = forest.semi[at] as usize;
        following[at] = std::mem::replace(&mut bucket[semi], vertex);
        let parent = walk.parent[at];
        forest.ancestor[at] = parent;
        let mut next = std::mem::replace(&mut bucket[parent as usize], NONE);
        while next != NONE {
            let least = forest.least(next);
            let is_lower = forest.semi[least as usize] < forest.semi[next as usize];
            dominator[next as usize] = if is_lower { least } else { parent };
            next = following[next as usize];
        }
    }
    for at in 1..count {
        if dominator[at] != forest.semi[at] {
            dominator[at] = dominator[dominator[at] as usize];
        }
    }
    let mut dominators = vec![NONE; graph.vertices()];
    for (vertex, dominator) in walk.order.iter().zip(dominator).skip(1) {
        dominators[*vertex as usize] = walk.order[dominator as usize];
    }
    DominatorTree {
        order: walk.order,
        dominators,
    }
}

/// A depth-first walk. Vertices are numbered in order of discovery.
struct Walk {
    order: Vec<u32>,
    /// Number of each vertex's parent in the walk.
    parent: Vec<u32>,
    /// Number by vertex; [`NONE`] for vertices that were not reached.
    number: Vec<u32>,
}

impl Walk {
    fn from(graph: &Graph, root: u32) -> Self {
        let mut walk = Self {
            order: Vec::new(),
            parent: Vec::new(),
            number: vec![NONE; graph.vertices()],
        };
        if root as usize >= graph.vertices() {
            return walk;
        }
        let mut open = vec![(walk.meet(root, NONE), 0)];
        while let Some((number, edge)) = open.last_mut() {
            let from = *number;
            let next = graph.next(walk.order[from as usize]).get(*edge).copied();
            *edge += 1;
            match next {
                Some(to) if walk.number[to as usize] == NONE => {
                    open.push((walk.meet(to, from), 0));
                }
                Some(_) => {}
                None => {
                    open.pop();
                }
            }
        }
        walk
    }

    fn meet(&mut self, vertex: u32, parent: u32) -> u32 {
        let number = self.order.len() as u32;
        self.number[vertex as usize] = number;
        self.order.push(vertex);
        self.parent.push(parent);
        number
    }

    fn predecessors(&self, graph: &Graph) -> Graph {
        let mut edges = Vec::new();
        for (from, vertex) in (0..).zip(&self.order) {
            let met = graph.next(*vertex).iter();
            edges.extend(met.map(|to| (self.number[*to as usize], from)));
        }
        Graph::of(self.order.len(), &edges)
    }
}

struct Forest {
    ancestor: Vec<u32>,
    /// The vertex with the lowest semidominator on the compressed path.
    label: Vec<u32>,
    semi: Vec<u32>,
    way: Vec<u32>,
}

impl Forest {
    /// The vertex with the lowest semidominator on the path from this one upwards.
    fn least(&mut self, vertex: u32) -> u32 {
        let above = |forest: &Self, vertex: u32| forest.ancestor[vertex as usize];
        let mut at = vertex;
        while above(self, at) != NONE && above(self, above(self, at)) != NONE {
            self.way.push(at);
            at = above(self, at);
        }
        while let Some(at) = self.way.pop() {
            let (at, above) = (at as usize, above(self, at) as usize);
            let [upper, own] = [self.label[above], self.label[at]];
            if self.semi[upper as usize] < self.semi[own as usize] {
                self.label[at] = upper;
            }
            self.ancestor[at] = self.ancestor[above];
        }
        self.label[vertex as usize]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn immediate(vertices: usize, edges: &[(u32, u32)]) -> Vec<u32> {
        dominators(&Graph::of(vertices, edges), 0).dominators
    }

    #[test]
    fn two_paths_are_dominated_by_their_fork() {
        let edges = [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5)];
        assert_eq!(immediate(7, &edges), [NONE, 0, 1, 1, 1, 4, NONE]);
    }

    #[test]
    fn a_chain_of_a_million_is_no_matter() {
        let edges: Vec<_> = (0..1_000_000).map(|at| (at, at + 1)).collect();
        let found = immediate(1_000_001, &edges);
        assert_eq!(found[1_000_000], 999_999);
    }

    /// Marks the vertices that are unreachable without this one.
    fn lost_without(graph: &Graph, left_out: u32) -> Vec<bool> {
        let mut met = vec![false; graph.vertices()];
        let mut open = vec![0];
        while let Some(vertex) = open.pop() {
            if vertex != left_out && !std::mem::replace(&mut met[vertex as usize], true) {
                open.extend(graph.next(vertex));
            }
        }
        met.iter().map(|met| !met).collect()
    }

    proptest! {
        #[test]
        fn a_vertex_is_lost_without_each_of_its_dominators_and_without_no_other(
            edges in prop::collection::vec((0_u32..14, 0_u32..15), 0..40),
        ) {
            let graph = Graph::of(14, &edges);
            let tree = dominators(&graph, 0);
            let unreached = lost_without(&graph, NONE);
            for left_out in 1..14 {
                let lost = lost_without(&graph, left_out);
                for vertex in 1..14_u32 {
                    let mut above = vertex;
                    while above != NONE && above != left_out {
                        above = tree.dominators[above as usize];
                    }
                    let expected = unreached[vertex as usize] || above == left_out;
                    prop_assert_eq!(lost[vertex as usize], expected || unreached[left_out as usize] && vertex == left_out);
                }
            }
        }
    }
}
