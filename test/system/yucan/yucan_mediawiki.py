#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Uses MediaWiki as a person would, through its forms and its API: writes and reads pages, uploads a file, revalidates styles.

usage: yucan_mediawiki.py PORT      (prints a line for each step, and exits with a message at the first step that fails)
"""
import json
import re
import sys
import urllib.parse

from yucan_site import Site, must

site = Site(sys.argv[1])


def api(**words):
    _, body, _, _ = site.fetch('/api.php', {'format': 'json', **words})
    return json.loads(body)


def token(kind):
    return api(action='query', meta='tokens', type=kind)['query']['tokens'][kind + 'token']


status, page, place, _ = site.fetch('/')
must(status == 200 and b'MediaWiki has been installed' in page and '/index.php/Main_Page' in place, 'the first page is there', page)
answer = api(action='login', lgname='Admin', lgpassword='Secret-12345678', lgtoken=token('login'))
must(answer['login']['result'] == 'Success', 'logged in', str(answer).encode())

title = 'Caf\u00e9 & Co?'
answer = api(action='edit', title=title, text="It '''works''': " + 'na\u00efve ' * 20000, token=token('csrf'))
must(answer['edit']['result'] == 'Success', 'a page of 120 KB written', str(answer).encode())
path = '/index.php/' + urllib.parse.quote(title.replace(' ', '_'), safe='')
status, page, place, _ = site.fetch(path)
must(status == 200 and b'It <b>works</b>' in page and page.count('na\u00efve'.encode()) >= 20000, 'read by its name in the path', page)
status, page, _, _ = site.fetch('/index.php?' + urllib.parse.urlencode({'title': title, 'action': 'raw'}))
must(status == 200 and page.startswith(b"It '''works'''"), 'read by its name in the query', page)
status, page, _, _ = site.fetch('/rest.php/v1/page/' + urllib.parse.quote(title.replace(' ', '_'), safe=''))
must(status == 200 and json.loads(page)['title'] == title, 'read by the REST interface', page)
status, page, _, _ = site.fetch('/index.php/Nothing_of_that_name')
must(status == 404 and b'There is currently no text in this page' in page, 'a page that is not there is 404', page)
status, page, _, _ = site.fetch('/index.php?search=works&fulltext=1')
must(status == 200, 'searched', page)

picture = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>'
_, body, _, _ = site.upload('/api.php', {'format': 'json', 'action': 'upload', 'filename': 'Square.svg', 'ignorewarnings': '1', 'token': token('csrf')},
                            'file', 'Square.svg', 'image/svg+xml', picture)
answer = json.loads(body)
must(answer.get('upload', {}).get('result') == 'Success', 'a file uploaded', body)
status, data, _, headers = site.fetch(answer['upload']['imageinfo']['url'])
must(status == 200 and data == picture and headers['content-type'].startswith('image/svg+xml'), 'the file is served as it was', data)

_, page, _, _ = site.fetch('/index.php/Main_Page')
styles = re.search(rb'href="(/load\.php\?[^"]*only=styles[^"]*)"', page).group(1).decode().replace('&amp;', '&')
site.fetch(styles) # The first request fills a cache from which the ETag is computed.
status, data, _, headers = site.fetch(styles)
must(status == 200 and headers['content-type'].startswith('text/css') and len(data) > 1000, 'styles made by the server', data)
status, data, _, headers = site.fetch(styles, None, {'If-None-Match': headers['etag']})
must(status == 304 and data == b'', 'styles revalidated', b'%d %s' % (status, str(headers).encode()))
