"""Models of named annotators: confusion matrices, and posteriors of their labels.

An opinion is drawn from the case's true shares q ~ Dir(α0 f); annotator r turns opinion k into answer l with
probability C⁽ʳ⁾_kl (``confusions``). Labels y of annotators r give the exact posterior of q, a mixture of Dirichlets
(``posterior``), from which follow the answers of anybody, named or not. The matrices are fitted and their shrinkage
is chosen on labels (``fitting``, ``choosing``). The model is mixed with an exchangeable one: left-out labels choose the
weights, and a case's labels update them (``confusions``). Where all matrices are the identity this is the paper's
posterior.

Source: Dawid and Skene 1979, Rodrigues and Pereira 2018, with the opinion integrated over a Dirichlet.
"""
