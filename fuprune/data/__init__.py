"""Images, how they are dealt to clients, and how they reach the device."""
