package serve

import (
	"embed"
	"net/http"
)

//go:embed page/index.html page/page.css page/page.js
var pageFiles embed.FS

// servePage serves the page's files. They need no token, because the page requests all data itself.
func servePage(w http.ResponseWriter, r *http.Request) {
	name := "page/index.html"
	kind := "text/html; charset=utf-8"
	switch r.URL.Path {
	case "/page.js":
		name, kind = "page/page.js", "text/javascript; charset=utf-8"
	case "/page.css":
		name, kind = "page/page.css", "text/css; charset=utf-8"
	}
	file, _ := pageFiles.ReadFile(name) // the build fails without it
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "+
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	_, _ = w.Write(file) // it fails only if the client has disconnected
}
