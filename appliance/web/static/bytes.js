// Formats sizes.
export function bytes(size) {
	if (size < 1000) return `${size} B`;
	if (size < 1e6) return `${(size / 1e3).toFixed(1)} kB`;
	return size < 1e9 ? `${(size / 1e6).toFixed(1)} MB` : `${(size / 1e9).toFixed(1)} GB`;
}
