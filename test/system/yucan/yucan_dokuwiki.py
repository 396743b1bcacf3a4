#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Uses DokuWiki as a person would: edits a page through its form, and reads and compares it.

usage: yucan_dokuwiki.py PORT      (prints a line for each step, and exits with a message at the first step that fails)
"""
import re
import sys
import time
import urllib.parse

from yucan_site import Site, must

site = Site(sys.argv[1])


def fields_of(page, form):
    """Returns the hidden fields of a form."""
    text = re.search(rb'<form[^>]*id="%s".*?</form>' % form.encode(), page, re.S).group(0).decode()
    hidden = {}
    for tag in re.findall(r'<input[^>]*type="hidden"[^>]*>', text):
        hidden[re.search(r'name="([^"]*)"', tag).group(1)] = re.search(r'value="([^"]*)"', tag).group(1)
    return hidden


def write(name, text):
    _, page, _, _ = site.fetch('/doku.php/%s?do=edit' % name)
    form = fields_of(page, 'dw__editform')
    return site.fetch('/doku.php/' + name, {**form, 'wikitext': text, 'do[save]': 'Save', 'summary': 'by a test'})


status, page, _, _ = site.fetch('/doku.php')
must(status == 404 and b'This topic does not exist yet' in page, 'the first page is 404 until somebody writes it', page)
status, page, place, _ = write(urllib.parse.quote('cities:z\u00fcrich'), '====== Z\u00fcrich ======\nIt **works**.\n')
must(status == 200 and b'It <strong>works</strong>' in page, 'a page written', page)
status, page, _, _ = site.fetch('/doku.php/' + urllib.parse.quote('cities:z\u00fcrich'))
must(status == 200 and 'Z\u00fcrich'.encode() in page, 'read by its name in the path', page)
status, page, _, _ = site.fetch('/doku.php?' + urllib.parse.urlencode({'id': 'cities:z\u00fcrich', 'do': 'export_raw'}))
must(status == 200 and page == '====== Z\u00fcrich ======\nIt **works**.\n'.encode(), 'its source is what was written', page)
# A revision is identified by the second in which it was written.
second = int(time.time())
while int(time.time()) == second:
    time.sleep(0.1)
status, page, _, _ = write(urllib.parse.quote('cities:z\u00fcrich'), '====== Z\u00fcrich ======\nIt **still works**.\n')
must(status == 200 and b'It <strong>still works</strong>' in page, 'written again', page)
status, page, _, _ = site.fetch('/doku.php/%s?do=diff' % urllib.parse.quote('cities:z\u00fcrich'))
must(status == 200 and b'still' in page and b'diff-addedline' in page, 'compared with what it was', page)
status, data, _, headers = site.fetch('/lib/exe/css.php?t=dokuwiki')
must(status == 200 and headers['content-type'].startswith('text/css') and len(data) > 1000, 'styles made by the server', data)
status, data, _, headers = site.fetch('/lib/images/license/button/cc-by.png')
must(status == 200 and data[1:4] == b'PNG', 'a file of the package is served', data)
