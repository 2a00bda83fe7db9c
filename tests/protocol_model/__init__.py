"""
A model of the lease protocol, searched exhaustively: every interleaving of single writes.

    state.py     what the world consists of, hashable
    rules.py     the transitions under test, taken from the domain as they are; mutants replace one
    worker.py    the steps of one invocation of a worker
    manager.py   the steps of a manager turn, and of a foreign leader that begins handovers
    outcomes.py  how a write may turn out: answered, unheard, late
    checks.py    what must hold after each write and in each state
    search.py    breadth-first search with the shortest counterexample
    recovery.py  whether a state recovers once nothing goes wrong any more
    scenarios.py where a search begins, and how much may go wrong in it
    mutants.py   rules that are wrong on purpose

What is modelled: two shards, a parent with two records that ends and its child with one; two or
three workers, of which each may have two invocations at once; one manager with arbitrarily old
snapshots; writes whose reply is lost and writes that land late; crashes of everything. Time is
left out: whatever may expire may be taken for expired whenever two looks saw the same counter.
"""
