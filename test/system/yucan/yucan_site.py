# SPDX-License-Identifier: Apache-2.0
"""Shared by the programs that use a site as a person would: cookies and forms as in a browser, and a report of each step."""
import http.cookiejar
import sys
import urllib.error
import urllib.parse
import urllib.request
import uuid


class Site:
    """A site on a port of this host, with its own cookies."""

    def __init__(self, port):
        self.base = 'http://localhost:' + port
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))

    def fetch(self, path, form=None, headers=None):
        """Returns the status, body, final address and headers of a page, after redirects. A form is posted; it is a dictionary, or encoded bytes."""
        data = urllib.parse.urlencode(form).encode() if isinstance(form, dict) else form
        url = path if path.startswith('http') else self.base + path
        try:
            with self.opener.open(urllib.request.Request(url, data, headers or {}), timeout=120) as answer:
                return answer.status, answer.read(), answer.geturl(), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read(), url, error.headers

    def upload(self, path, fields, name, filename, kind, content):
        """Posts fields and a file as multipart/form-data."""
        boundary = uuid.uuid4().hex
        body = b''.join(b'--%s\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (boundary.encode(), k.encode(), v.encode())
                        for k, v in fields.items())
        body += (b'--%s\r\nContent-Disposition: form-data; name="%s"; filename="%s"\r\nContent-Type: %s\r\n\r\n'
                 % (boundary.encode(), name.encode(), filename.encode(), kind.encode()) + content + b'\r\n--%s--\r\n' % boundary.encode())
        return self.fetch(path, body, {'Content-Type': 'multipart/form-data; boundary=' + boundary})


def must(condition, what, shown=b''):
    """Prints the step if the condition is true. Otherwise exits with a message that shows the step and the page."""
    if not condition:
        sys.exit('not so: %s\n%s' % (what, shown[-2000:].decode(errors='replace')))
    print(what, flush=True)
