"""From a body on the wire to rows in one transaction."""
