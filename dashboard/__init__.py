"""Pages, live stream and REST interface over what the store holds. No torch: it runs where nothing trains."""
