package table

// AppendString appends a JSON string. It does not escape HTML's characters. s
// must be valid UTF-8.
func AppendString(dst, s []byte) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	from := 0
	for i, c := range s {
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(append(dst, s[from:]...), '"')
}

// appendTime appends the server's "2006-01-02 15:04:05.999999" as RFC 3339, or
// unchanged if there is no such time: the server stores zero dates, and under
// ALLOW_INVALID_DATES also the 31st of February.
func appendTime(dst, s []byte) []byte {
	if !isDateTime(s) || !isTime(s) {
		return AppendString(dst, s)
	}
	dst = append(dst, '"')
	dst = append(dst, s[:10]...)
	dst = append(dst, 'T')
	dst = append(dst, s[11:]...)
	return append(dst, 'Z', '"')
}

// isDateTime reports whether s has digits and separators in the right places.
func isDateTime(s []byte) bool {
	const shape, withoutFraction = "0000-00-00 00:00:00.000000", 19
	if len(s) < withoutFraction || len(s) == withoutFraction+1 || len(s) > len(shape) {
		return false
	}
	for i, c := range s {
		if mark := shape[i]; c != mark && (mark != '0' || c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// isTime reports whether s, "2006-01-02 15:04:05", begins with a valid date and time.
func isTime(s []byte) bool {
	two := func(i int) int { return int(s[i]-'0')*10 + int(s[i+1]-'0') }
	year, month, day := two(0)*100+two(2), two(5), two(8)
	last := 31
	switch month {
	case 4, 6, 9, 11:
		last = 30
	case 2:
		last = 28
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			last = 29
		}
	}
	return month >= 1 && month <= 12 && day >= 1 && day <= last && two(11) < 24 && two(14) < 60 && two(17) < 60
}
