"""Who asked, for people."""


def who(actor: str, authtype: str, authverified: str, publisher: str) -> str:
    """Return who asked, in words that tell a verified name from a claim, whatever the claim says."""
    if authverified == "signature":
        return f"{actor} (signed)"
    if authverified == "gateway":
        return f"{actor} via {publisher} (signed)"
    return f"unverified {actor or f'{authtype} actor'}"
