"""A trainer-like load: what to send is decided in `scenario`, sent by `runner`, counted in `report`.

The measured program must not be helped: no knowledge of the router beyond what a trainer has.
"""
